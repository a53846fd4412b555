"""The tables of a journal, RUN/journal.sqlite: the one place that says what it stores.

A journal holds every group, segment, verdict, take and commit of a run. It stores the version of this schema
and of the asyncrl that made it. Before 1.0 a journal of another schema version is refused: there is no
migration, and no code for tables or columns that may be missing.

Two counts appear. A *version* counts the steps behind the weights, from 0 for the base model. A *step* is the
one that made the version of the same number, so steps count from 1 and step n trains version n - 1 into
version n. What is called step counts from 1 everywhere: in code, metrics.jsonl, terminal and page. The tables
hold versions alone: a batch is known by its `taken_version`, the trainer's when it took it, and step
taken_version + 1 trains on it.
"""

import functools
import importlib.metadata
import re
import sqlite3
from dataclasses import dataclass

SCHEMA_VERSION = "12"
"""Raise it with every change below."""
SCHEMA_KEY = "schema_version"
"""Key of `meta`: the SCHEMA_VERSION of the file."""
AUTHOR_KEY = "asyncrl_version"
"""Key of `meta`: the version of asyncrl that made the file."""

# Above each table stands what a row is, behind each column what it means. An index ends in the row id: rows
# of one value come in the order of group_id.
SQL = """
-- admitted group
CREATE TABLE groups (
    group_id INTEGER PRIMARY KEY,  -- admission order, from 0
    task_id TEXT NOT NULL,  -- <file stem>:<line number>
    prompt TEXT NOT NULL,  -- the text that the model continues
    state TEXT NOT NULL,  -- open, ready, taken, trained, dropped
    admitted_version INTEGER NOT NULL,  -- the trainer's at admission: no token is older
    admitted_seconds REAL NOT NULL,  -- Unix time
    taken_version INTEGER,  -- the trainer's when it took the group first
    reason TEXT  -- why it was dropped
);
CREATE INDEX groups_by_taken_version_state ON groups (taken_version, state);
CREATE INDEX groups_by_state ON groups (state);
CREATE INDEX groups_by_reason ON groups (reason);
CREATE INDEX groups_by_admitted_version_state_reason ON groups (admitted_version, state, reason);

-- trajectory, or branch of one
CREATE TABLE trajectories (
    trajectory_id TEXT PRIMARY KEY,  -- <group>-<sample>, such as 00000012-03; <that>.<branch>
    group_id INTEGER NOT NULL,  -- its group
    sample INTEGER NOT NULL,  -- from 0 within its group
    prompt_tokens BLOB NOT NULL,  -- int32; empty once compacted
    finish TEXT,  -- stop, length
    outcome TEXT,  -- of its verdict: correct, wrong, no_answer, fault
    correctness REAL,  -- raw score in [0, 1]; none for a fault
    reward REAL,  -- correctness plus shaping, without its credits
    scores TEXT,  -- JSON: name -> score of each thing that was judged; none without
    credits TEXT,  -- JSON: [sampled token, reward] of each reward inside, branch after branch; none without
    advantage REAL,  -- over its group, of the first turn; none where it left the group
    turn_advantages TEXT,  -- JSON: [sampled tokens, advantage] of turns, if they differ
    extracted TEXT,  -- the answer that the verifier read
    detail TEXT,  -- why the verdict is what it is
    verify_seconds REAL,  -- how long grading took
    text TEXT,  -- the decoded response; none once compacted
    branch_of TEXT,  -- the trajectory that it is a branch of; none for a trajectory
    role TEXT NOT NULL DEFAULT ''  -- the agent's that speaks (agent.roles); empty without
);
CREATE INDEX trajectories_by_group_id_outcome ON trajectories (group_id, outcome);
CREATE INDEX trajectories_by_group_id_WHERE_outcome_fault ON trajectories (group_id) WHERE outcome = 'fault';

-- verdict on a branch, where each branch has its own (agent.verdict, agent.roles)
CREATE TABLE branch_verdicts (
    trajectory_id TEXT PRIMARY KEY,  -- the branch's; the trajectory's for its first one
    outcome TEXT NOT NULL,  -- as in trajectories, which tell all branches together
    correctness REAL,  -- raw score in [0, 1]; none for a fault
    reward REAL,  -- correctness plus shaping, without credits
    extracted TEXT,  -- the answer that the verifier read
    detail TEXT,  -- why the verdict is what it is
    verify_seconds REAL NOT NULL,  -- how long grading took
    text TEXT  -- its decoded last message; none once compacted
) WITHOUT ROWID;

-- reply that an agent asked for
CREATE TABLE calls (
    trajectory_id TEXT NOT NULL,  -- the agent's trajectory
    ordinal INTEGER NOT NULL,  -- of the call, from 0
    choice INTEGER NOT NULL,  -- of the call's replies, from 0
    digest TEXT NOT NULL,  -- of the canonical request
    branch INTEGER NOT NULL,  -- number of the one that has the reply; 0: the trajectory
    turn INTEGER NOT NULL,  -- turn of the branch, from 0
    PRIMARY KEY (trajectory_id, ordinal, choice)
) WITHOUT ROWID;

-- streamed chunk
CREATE TABLE segments (
    trajectory_id TEXT NOT NULL,  -- its trajectory
    position INTEGER NOT NULL,  -- of its first token after the prompt
    version INTEGER NOT NULL,  -- the weights that sampled it
    is_continued INTEGER NOT NULL,  -- sampled over a KV cache of an older version
    tokens BLOB NOT NULL,  -- int32
    logprobs BLOB NOT NULL,  -- float32, natural log
    PRIMARY KEY (trajectory_id, position)
) WITHOUT ROWID;

-- streamed chunk whose tokens were sampled from some of all (rollout.top_p, top_k, min_p)
CREATE TABLE kept_sets (
    trajectory_id TEXT NOT NULL,  -- its trajectory
    position INTEGER NOT NULL,  -- that of its segment
    kept BLOB NOT NULL,  -- the other kept ids of each token, ascending: distances from -1 on as LEB128, then
    -- a byte 0
    PRIMARY KEY (trajectory_id, position)
) WITHOUT ROWID;

-- streamed chunk whose tokens train the experts that they took (algorithm.routing_replay: rollout)
CREATE TABLE routes (
    trajectory_id TEXT NOT NULL,  -- its trajectory
    position INTEGER NOT NULL,  -- that of its segment
    context BLOB NOT NULL,  -- rows of positions in front of `experts` that no chunk before has
    experts BLOB NOT NULL,  -- of the pass that sampled each token: layer after layer its experts, uint8 or
    -- (>256) uint16
    PRIMARY KEY (trajectory_id, position)
) WITHOUT ROWID;

-- trajectory, or branch of one, that the teacher has scored
CREATE TABLE teacher_logprobs (
    trajectory_id TEXT PRIMARY KEY,  -- its trajectory, or branch
    logprobs BLOB NOT NULL,  -- float32, natural log, of its sampled tokens
    top BLOB  -- with teacher.top_k: of each of them k likeliest ids, int32, then log-probs, float32
) WITHOUT ROWID;

-- answer to a turn of a trajectory
CREATE TABLE observations (
    trajectory_id TEXT NOT NULL,  -- its trajectory
    position INTEGER NOT NULL,  -- of its first token in the response
    turn INTEGER NOT NULL,  -- the turn that it answers, from 0
    turn_finish TEXT NOT NULL,  -- how that turn ended: stop, length
    tokens BLOB NOT NULL,  -- int32; sampled by no policy, so in no account of tokens
    notes TEXT NOT NULL,  -- JSON: the calls, messages and seconds of the turn
    PRIMARY KEY (trajectory_id, position)
) WITHOUT ROWID;

-- request for a trajectory
CREATE TABLE streams (
    trajectory_id TEXT NOT NULL,  -- its trajectory
    position INTEGER NOT NULL,  -- the response token where it began
    server TEXT NOT NULL,  -- URL
    started_seconds REAL NOT NULL  -- Unix time
);
CREATE INDEX streams_by_trajectory_id ON streams (trajectory_id);

-- later use of a trained group
CREATE TABLE repetitions (
    taken_version INTEGER NOT NULL,  -- the trainer's when it took the group again
    group_id INTEGER NOT NULL,  -- the group
    PRIMARY KEY (taken_version, group_id)
) WITHOUT ROWID;
CREATE INDEX repetitions_by_group_id ON repetitions (group_id);

-- batch, as it was when it was taken
CREATE TABLE batch_columns (
    taken_version INTEGER PRIMARY KEY,  -- the trainer's when it took the batch
    columns TEXT NOT NULL  -- JSON: what its verdicts, lengths and ages say in metrics.jsonl
);

-- use of a trajectory by a step, of the groups that view.groups_per_step keeps
CREATE TABLE trained_tokens (
    taken_version INTEGER NOT NULL,  -- the trainer's when it took the trajectory
    trajectory_id TEXT NOT NULL,  -- its trajectory
    log_ratios BLOB NOT NULL,  -- float16, the trainer's log-prob less the server's
    entropies BLOB NOT NULL,  -- float16, nats
    advantages BLOB,  -- float16; none where all are the trajectory's
    PRIMARY KEY (trajectory_id, taken_version)
) WITHOUT ROWID;

-- group whose trajectories were graded
CREATE TABLE answers (
    task_id TEXT NOT NULL,  -- its task
    group_id INTEGER NOT NULL,  -- the group
    num_graded INTEGER NOT NULL,  -- sampled trajectories with a score
    correct REAL NOT NULL,  -- mean of their raw scores
    answer TEXT,  -- the extracted one that most of them gave, cut; none where none was
    num_same INTEGER NOT NULL,  -- trajectories that gave it
    version INTEGER NOT NULL,  -- the newest that the trainer had reached by then
    PRIMARY KEY (task_id, group_id)
) WITHOUT ROWID;

-- task of which a group was graded
CREATE TABLE tasks (
    task_id TEXT PRIMARY KEY,  -- <file stem>:<line number>
    num_visits INTEGER NOT NULL,  -- graded groups
    num_changes INTEGER NOT NULL,  -- groups whose answer was not that of the one before
    moved REAL NOT NULL,  -- sum of the changes of the share correct, each without its sign
    answer TEXT,  -- of the group that was graded last
    correct REAL NOT NULL  -- of the group that was graded last
) WITHOUT ROWID;
CREATE INDEX tasks_by_num_changes_moved ON tasks (num_changes + moved);

-- cause of verifier faults
CREATE TABLE fault_traces (
    cause TEXT PRIMARY KEY,  -- the exception and its place
    trajectory_id TEXT NOT NULL,  -- the first whose verdict failed by it
    trace TEXT NOT NULL  -- the traceback then
) WITHOUT ROWID;

-- cause of verifier faults whose retry gave a verdict
CREATE TABLE retried_faults (
    cause TEXT PRIMARY KEY,  -- as in fault_traces, or 'further causes'
    num_faults INTEGER NOT NULL,  -- attempts that failed by it, evaluations included
    task_id TEXT NOT NULL,  -- of the first one
    detail TEXT NOT NULL,  -- of the first one
    trace TEXT NOT NULL  -- of the first one; empty where the verifier did not raise
) WITHOUT ROWID;

-- graded response of an evaluation
CREATE TABLE evaluated (
    version INTEGER NOT NULL,  -- the weights that were evaluated
    name TEXT NOT NULL,  -- held-out, or the benchmark
    task_id TEXT NOT NULL,  -- its task
    sample INTEGER NOT NULL,  -- from 0; -1: the most likely answer
    outcome TEXT NOT NULL,  -- of its verdict, as in trajectories
    correctness REAL,  -- raw score in [0, 1]; none for a fault
    num_tokens INTEGER NOT NULL,  -- of the response
    is_cut INTEGER NOT NULL,  -- ended at the limit of its tokens
    extracted TEXT,  -- the answer that the verifier read
    text TEXT,  -- the response, of most likely answers to held-out tasks alone
    PRIMARY KEY (version, name, task_id, sample)
);

-- task of an evaluation
CREATE TABLE evaluated_tasks (
    name TEXT NOT NULL,  -- held-out, or the benchmark
    task_id TEXT NOT NULL,  -- <file stem>:<line number>
    prompt TEXT NOT NULL,  -- the text that the model continued
    PRIMARY KEY (name, task_id)
) WITHOUT ROWID;

-- durable checkpoint
CREATE TABLE commits (
    version INTEGER PRIMARY KEY,  -- of its weights
    checkpoint_folder TEXT NOT NULL,  -- where it lies
    committed_seconds REAL NOT NULL  -- Unix time
);

-- start of the run, first or resumed
CREATE TABLE starts (
    version INTEGER PRIMARY KEY,  -- of the checkpoint that it began from
    recipe TEXT NOT NULL,  -- YAML, resolved
    started_seconds REAL NOT NULL  -- Unix time
);

-- start of the run, also of steps that a later start trained again
CREATE TABLE environments (
    started_seconds REAL PRIMARY KEY,  -- Unix time
    version INTEGER NOT NULL,  -- of the checkpoint that it began from
    environment TEXT NOT NULL  -- JSON: packages, Python, machine, commit, model, code
);

-- process of a start
CREATE TABLE usage (
    started_seconds REAL NOT NULL,  -- its start, as in environments
    name TEXT NOT NULL,  -- run, controller, verifiers, server 0, trainer 0, ...
    wall_seconds REAL NOT NULL,  -- that it ran, as last seen
    cpu_seconds REAL,  -- its own and its children's; none where it could not be read
    num_gpus INTEGER NOT NULL,  -- that it had
    num_restarts INTEGER NOT NULL,  -- within this start
    PRIMARY KEY (started_seconds, name)
) WITHOUT ROWID;

-- change of the fleet
CREATE TABLE servers (
    url TEXT NOT NULL,  -- of the server
    action TEXT NOT NULL,  -- add, remove
    is_local INTEGER NOT NULL,  -- whether it is a process of the run
    named TEXT NOT NULL,  -- JSON: the servers of the recipe at the time
    changed_seconds REAL NOT NULL  -- Unix time
);

-- trajectory whose tokens were removed
CREATE TABLE compacted (
    trajectory_id TEXT PRIMARY KEY,  -- its trajectory
    num_tokens INTEGER NOT NULL,  -- of its response
    version_min INTEGER NOT NULL,  -- the oldest that sampled a token
    version_max INTEGER NOT NULL,  -- the newest
    segments TEXT NOT NULL  -- JSON: [version, tokens, is_continued] of each former segment
) WITHOUT ROWID;

-- token account
CREATE TABLE counters (
    name TEXT PRIMARY KEY,  -- such as tokens_generated or tokens_dropped:<reason>
    value INTEGER NOT NULL  -- in tokens
);

-- fact about the file
CREATE TABLE meta (
    key TEXT PRIMARY KEY,  -- such as schema_version or 'digest of model.path'
    value TEXT NOT NULL  -- as text
);
"""


@dataclass(frozen=True, slots=True)
class Table:
    name: str
    row: str
    """Meaning of one row."""
    columns: dict[str, str]
    """Name -> meaning."""


def _read_table(row: str, name: str, body: str) -> Table:
    joined = re.sub(r"\n    --", "", body)
    return Table(name, row, dict(re.findall(r"^    (\w+) .*?  -- (.*)$", joined, re.MULTILINE)))


TABLES = [
    _read_table(*found) for found in re.findall(r"-- (.*)\nCREATE TABLE (\w+) \(\n((?:    .*\n)*)\)", SQL)
]


def create_tables(connection: sqlite3.Connection) -> None:
    """Makes all tables and stores both versions, in one transaction: a crash leaves a file without tables."""
    with connection:
        connection.executescript("BEGIN;" + re.sub(r" *--.*", "", SQL))
        versions = [(SCHEMA_KEY, SCHEMA_VERSION), (AUTHOR_KEY, own_version())]
        connection.executemany("INSERT INTO meta VALUES (?, ?)", versions)


@functools.cache
def own_version() -> str:
    """The version of the asyncrl that runs."""
    return importlib.metadata.version("asyncrl")


def tables_in_words() -> str:
    """Each table with its columns, on one line: "name(column, ...), ..."."""
    return ", ".join(f"{table.name}({', '.join(table.columns)})" for table in TABLES)
