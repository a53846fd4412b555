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


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: str
    """SQL type and constraint."""
    meaning: str


@dataclass(frozen=True, slots=True)
class Table:
    name: str
    row: str
    """Meaning of one row."""
    columns: tuple[Column, ...]
    key: str = ""
    """The primary key where it spans columns."""
    indices: tuple[str, ...] = ()
    """Columns that queries search by, "a, b" for two together; " WHERE ..." for some rows alone."""
    has_rowid: bool = True

    def statements(self) -> list[str]:
        """The SQL that creates the table and its indices."""
        parts = [f"{column.name} {column.type}" for column in self.columns]
        parts += [f"PRIMARY KEY ({self.key})"] if self.key else []
        made = [f"CREATE TABLE {self.name} ({', '.join(parts)}){'' if self.has_rowid else ' WITHOUT ROWID'}"]
        for index in self.indices:
            name = re.sub(r"\W+", "_", f"{self.name}_by_{index}").rstrip("_")
            columns, where, rows = index.partition(" WHERE ")
            made.append(f"CREATE INDEX {name} ON {self.name} ({columns}){where}{rows}")
        return made


TABLES = (
    Table(
        "groups",
        "admitted group",
        (
            Column("group_id", "INTEGER PRIMARY KEY", "admission order, from 0"),
            Column("task_id", "TEXT NOT NULL", "<file stem>:<line number>"),
            Column("prompt", "TEXT NOT NULL", "the text that the model continues"),
            Column("state", "TEXT NOT NULL", "open, ready, taken, trained, dropped"),
            Column("admitted_version", "INTEGER NOT NULL", "the trainer's at admission: no token is older"),
            Column("admitted_seconds", "REAL NOT NULL", "Unix time"),
            Column("taken_version", "INTEGER", "the trainer's when it took the group first"),
            Column("reason", "TEXT", "why it was dropped"),
        ),
        # An index ends in the row id: rows of one value come in the order of group_id.
        indices=("taken_version, state", "state", "reason", "admitted_version, state, reason"),
    ),
    Table(
        "trajectories",
        "trajectory, or branch of one",
        (
            Column(
                "trajectory_id",
                "TEXT PRIMARY KEY",
                "<group>-<sample>, such as 00000012-03; <that>.<branch>",
            ),
            Column("group_id", "INTEGER NOT NULL", "its group"),
            Column("sample", "INTEGER NOT NULL", "from 0 within its group"),
            Column("prompt_tokens", "BLOB NOT NULL", "int32; empty once compacted"),
            Column("finish", "TEXT", "stop, length"),
            Column("outcome", "TEXT", "of its verdict: correct, wrong, no_answer, fault"),
            Column("correctness", "REAL", "raw score in [0, 1]; none for a fault"),
            Column("reward", "REAL", "correctness plus shaping, without its credits"),
            Column("scores", "TEXT", "JSON: name -> score of each thing that was judged; none without"),
            Column(
                "credits",
                "TEXT",
                "JSON: [sampled token, reward] of each reward inside, branch after branch; none without",
            ),
            Column("advantage", "REAL", "over its group, of the first turn; none where it left the group"),
            Column("turn_advantages", "TEXT", "JSON: [sampled tokens, advantage] of turns, if they differ"),
            Column("extracted", "TEXT", "the answer that the verifier read"),
            Column("detail", "TEXT", "why the verdict is what it is"),
            Column("verify_seconds", "REAL", "how long grading took"),
            Column("text", "TEXT", "the decoded response; none once compacted"),
            Column("branch_of", "TEXT", "the trajectory that it is a branch of; none for a trajectory"),
            Column(
                "role", "TEXT NOT NULL DEFAULT ''", "the agent's that speaks (agent.roles); empty without"
            ),
        ),
        indices=("group_id, outcome", "group_id WHERE outcome = 'fault'"),
    ),
    Table(
        "branch_verdicts",
        "verdict on a branch, where each branch has its own (agent.verdict, agent.roles)",
        (
            Column("trajectory_id", "TEXT PRIMARY KEY", "the branch's; the trajectory's for its first one"),
            Column("outcome", "TEXT NOT NULL", "as in trajectories, which tell all branches together"),
            Column("correctness", "REAL", "raw score in [0, 1]; none for a fault"),
            Column("reward", "REAL", "correctness plus shaping, without credits"),
            Column("extracted", "TEXT", "the answer that the verifier read"),
            Column("detail", "TEXT", "why the verdict is what it is"),
            Column("verify_seconds", "REAL NOT NULL", "how long grading took"),
            Column("text", "TEXT", "its decoded last message; none once compacted"),
        ),
        has_rowid=False,
    ),
    Table(
        "calls",
        "reply that an agent asked for",
        (
            Column("trajectory_id", "TEXT NOT NULL", "the agent's trajectory"),
            Column("ordinal", "INTEGER NOT NULL", "of the call, from 0"),
            Column("choice", "INTEGER NOT NULL", "of the call's replies, from 0"),
            Column("digest", "TEXT NOT NULL", "of the canonical request"),
            Column("branch", "INTEGER NOT NULL", "number of the one that has the reply; 0: the trajectory"),
            Column("turn", "INTEGER NOT NULL", "turn of the branch, from 0"),
        ),
        key="trajectory_id, ordinal, choice",
        has_rowid=False,
    ),
    Table(
        "segments",
        "streamed chunk",
        (
            Column("trajectory_id", "TEXT NOT NULL", "its trajectory"),
            Column("position", "INTEGER NOT NULL", "of its first token after the prompt"),
            Column("version", "INTEGER NOT NULL", "the weights that sampled it"),
            Column("is_continued", "INTEGER NOT NULL", "sampled over a KV cache of an older version"),
            Column("tokens", "BLOB NOT NULL", "int32"),
            Column("logprobs", "BLOB NOT NULL", "float32, natural log"),
        ),
        key="trajectory_id, position",
        has_rowid=False,
    ),
    Table(
        "kept_sets",
        "streamed chunk whose tokens were sampled from some of all (rollout.top_p, top_k, min_p)",
        (
            Column("trajectory_id", "TEXT NOT NULL", "its trajectory"),
            Column("position", "INTEGER NOT NULL", "that of its segment"),
            Column(
                "kept",
                "BLOB NOT NULL",
                "the other kept ids of each token, ascending: distances from -1 on as LEB128, then a byte 0",
            ),
        ),
        key="trajectory_id, position",
        has_rowid=False,
    ),
    Table(
        "routes",
        "streamed chunk whose tokens train the experts that they took (algorithm.routing_replay: rollout)",
        (
            Column("trajectory_id", "TEXT NOT NULL", "its trajectory"),
            Column("position", "INTEGER NOT NULL", "that of its segment"),
            Column(
                "context", "BLOB NOT NULL", "rows of positions in front of `experts` that no chunk before has"
            ),
            Column(
                "experts",
                "BLOB NOT NULL",
                "of the pass that sampled each token: layer after layer its experts, uint8 or (>256) uint16",
            ),
        ),
        key="trajectory_id, position",
        has_rowid=False,
    ),
    Table(
        "teacher_logprobs",
        "trajectory, or branch of one, that the teacher has scored",
        (
            Column("trajectory_id", "TEXT PRIMARY KEY", "its trajectory, or branch"),
            Column("logprobs", "BLOB NOT NULL", "float32, natural log, of its sampled tokens"),
            Column(
                "top",
                "BLOB",
                "with teacher.top_k: of each of them k likeliest ids, int32, then log-probs, float32",
            ),
        ),
        has_rowid=False,
    ),
    Table(
        "observations",
        "answer to a turn of a trajectory",
        (
            Column("trajectory_id", "TEXT NOT NULL", "its trajectory"),
            Column("position", "INTEGER NOT NULL", "of its first token in the response"),
            Column("turn", "INTEGER NOT NULL", "the turn that it answers, from 0"),
            Column("turn_finish", "TEXT NOT NULL", "how that turn ended: stop, length"),
            Column("tokens", "BLOB NOT NULL", "int32; sampled by no policy, so in no account of tokens"),
            Column("notes", "TEXT NOT NULL", "JSON: the calls, messages and seconds of the turn"),
        ),
        key="trajectory_id, position",
        has_rowid=False,
    ),
    Table(
        "streams",
        "request for a trajectory",
        (
            Column("trajectory_id", "TEXT NOT NULL", "its trajectory"),
            Column("position", "INTEGER NOT NULL", "the response token where it began"),
            Column("server", "TEXT NOT NULL", "URL"),
            Column("started_seconds", "REAL NOT NULL", "Unix time"),
        ),
        indices=("trajectory_id",),
    ),
    Table(
        "repetitions",
        "later use of a trained group",
        (
            Column("taken_version", "INTEGER NOT NULL", "the trainer's when it took the group again"),
            Column("group_id", "INTEGER NOT NULL", "the group"),
        ),
        key="taken_version, group_id",
        indices=("group_id",),
        has_rowid=False,
    ),
    Table(
        "batch_columns",
        "batch, as it was when it was taken",
        (
            Column("taken_version", "INTEGER PRIMARY KEY", "the trainer's when it took the batch"),
            Column(
                "columns", "TEXT NOT NULL", "JSON: what its verdicts, lengths and ages say in metrics.jsonl"
            ),
        ),
    ),
    Table(
        "trained_tokens",
        "use of a trajectory by a step, of the groups that view.groups_per_step keeps",
        (
            Column("taken_version", "INTEGER NOT NULL", "the trainer's when it took the trajectory"),
            Column("trajectory_id", "TEXT NOT NULL", "its trajectory"),
            Column("log_ratios", "BLOB NOT NULL", "float16, the trainer's log-prob less the server's"),
            Column("entropies", "BLOB NOT NULL", "float16, nats"),
            Column("advantages", "BLOB", "float16; none where all are the trajectory's"),
        ),
        key="trajectory_id, taken_version",
        has_rowid=False,
    ),
    Table(
        "answers",
        "group whose trajectories were graded",
        (
            Column("task_id", "TEXT NOT NULL", "its task"),
            Column("group_id", "INTEGER NOT NULL", "the group"),
            Column("num_graded", "INTEGER NOT NULL", "sampled trajectories with a score"),
            Column("correct", "REAL NOT NULL", "mean of their raw scores"),
            Column("answer", "TEXT", "the extracted one that most of them gave, cut; none where none was"),
            Column("num_same", "INTEGER NOT NULL", "trajectories that gave it"),
            Column("version", "INTEGER NOT NULL", "the newest that the trainer had reached by then"),
        ),
        key="task_id, group_id",
        has_rowid=False,
    ),
    Table(
        "tasks",
        "task of which a group was graded",
        (
            Column("task_id", "TEXT PRIMARY KEY", "<file stem>:<line number>"),
            Column("num_visits", "INTEGER NOT NULL", "graded groups"),
            Column("num_changes", "INTEGER NOT NULL", "groups whose answer was not that of the one before"),
            Column(
                "moved", "REAL NOT NULL", "sum of the changes of the share correct, each without its sign"
            ),
            Column("answer", "TEXT", "of the group that was graded last"),
            Column("correct", "REAL NOT NULL", "of the group that was graded last"),
        ),
        indices=("num_changes + moved",),
        has_rowid=False,
    ),
    Table(
        "fault_traces",
        "cause of verifier faults",
        (
            Column("cause", "TEXT PRIMARY KEY", "the exception and its place"),
            Column("trajectory_id", "TEXT NOT NULL", "the first whose verdict failed by it"),
            Column("trace", "TEXT NOT NULL", "the traceback then"),
        ),
        has_rowid=False,
    ),
    Table(
        "retried_faults",
        "cause of verifier faults whose retry gave a verdict",
        (
            Column("cause", "TEXT PRIMARY KEY", "as in fault_traces, or 'further causes'"),
            Column("num_faults", "INTEGER NOT NULL", "attempts that failed by it, evaluations included"),
            Column("task_id", "TEXT NOT NULL", "of the first one"),
            Column("detail", "TEXT NOT NULL", "of the first one"),
            Column("trace", "TEXT NOT NULL", "of the first one; empty where the verifier did not raise"),
        ),
        has_rowid=False,
    ),
    Table(
        "evaluated",
        "graded response of an evaluation",
        (
            Column("version", "INTEGER NOT NULL", "the weights that were evaluated"),
            Column("name", "TEXT NOT NULL", "held-out, or the benchmark"),
            Column("task_id", "TEXT NOT NULL", "its task"),
            Column("sample", "INTEGER NOT NULL", "from 0; -1: the most likely answer"),
            Column("outcome", "TEXT NOT NULL", "of its verdict, as in trajectories"),
            Column("correctness", "REAL", "raw score in [0, 1]; none for a fault"),
            Column("num_tokens", "INTEGER NOT NULL", "of the response"),
            Column("is_cut", "INTEGER NOT NULL", "ended at the limit of its tokens"),
            Column("extracted", "TEXT", "the answer that the verifier read"),
            Column("text", "TEXT", "the response, of most likely answers to held-out tasks alone"),
        ),
        key="version, name, task_id, sample",
    ),
    Table(
        "evaluated_tasks",
        "task of an evaluation",
        (
            Column("name", "TEXT NOT NULL", "held-out, or the benchmark"),
            Column("task_id", "TEXT NOT NULL", "<file stem>:<line number>"),
            Column("prompt", "TEXT NOT NULL", "the text that the model continued"),
        ),
        key="name, task_id",
        has_rowid=False,
    ),
    Table(
        "commits",
        "durable checkpoint",
        (
            Column("version", "INTEGER PRIMARY KEY", "of its weights"),
            Column("checkpoint_folder", "TEXT NOT NULL", "where it lies"),
            Column("committed_seconds", "REAL NOT NULL", "Unix time"),
        ),
    ),
    Table(
        "starts",
        "start of the run, first or resumed",
        (
            Column("version", "INTEGER PRIMARY KEY", "of the checkpoint that it began from"),
            Column("recipe", "TEXT NOT NULL", "YAML, resolved"),
            Column("started_seconds", "REAL NOT NULL", "Unix time"),
        ),
    ),
    Table(
        "environments",
        "start of the run, also of steps that a later start trained again",
        (
            Column("started_seconds", "REAL PRIMARY KEY", "Unix time"),
            Column("version", "INTEGER NOT NULL", "of the checkpoint that it began from"),
            Column("environment", "TEXT NOT NULL", "JSON: packages, Python, machine, commit, model, code"),
        ),
    ),
    Table(
        "usage",
        "process of a start",
        (
            Column("started_seconds", "REAL NOT NULL", "its start, as in environments"),
            Column("name", "TEXT NOT NULL", "run, controller, verifiers, server 0, trainer 0, ..."),
            Column("wall_seconds", "REAL NOT NULL", "that it ran, as last seen"),
            Column("cpu_seconds", "REAL", "its own and its children's; none where it could not be read"),
            Column("num_gpus", "INTEGER NOT NULL", "that it had"),
            Column("num_restarts", "INTEGER NOT NULL", "within this start"),
        ),
        key="started_seconds, name",
        has_rowid=False,
    ),
    Table(
        "servers",
        "change of the fleet",
        (
            Column("url", "TEXT NOT NULL", "of the server"),
            Column("action", "TEXT NOT NULL", "add, remove"),
            Column("is_local", "INTEGER NOT NULL", "whether it is a process of the run"),
            Column("named", "TEXT NOT NULL", "JSON: the servers of the recipe at the time"),
            Column("changed_seconds", "REAL NOT NULL", "Unix time"),
        ),
    ),
    Table(
        "compacted",
        "trajectory whose tokens were removed",
        (
            Column("trajectory_id", "TEXT PRIMARY KEY", "its trajectory"),
            Column("num_tokens", "INTEGER NOT NULL", "of its response"),
            Column("version_min", "INTEGER NOT NULL", "the oldest that sampled a token"),
            Column("version_max", "INTEGER NOT NULL", "the newest"),
            Column(
                "segments", "TEXT NOT NULL", "JSON: [version, tokens, is_continued] of each former segment"
            ),
        ),
        has_rowid=False,
    ),
    Table(
        "counters",
        "token account",
        (
            Column("name", "TEXT PRIMARY KEY", "such as tokens_generated or tokens_dropped:<reason>"),
            Column("value", "INTEGER NOT NULL", "in tokens"),
        ),
    ),
    Table(
        "meta",
        "fact about the file",
        (
            Column("key", "TEXT PRIMARY KEY", "such as schema_version or 'digest of model.path'"),
            Column("value", "TEXT NOT NULL", "as text"),
        ),
    ),
)


def create_tables(connection: sqlite3.Connection) -> None:
    """Makes all tables and stores both versions, in one transaction: a crash leaves a file without tables."""
    with connection:
        connection.execute("BEGIN")
        for table in TABLES:
            for statement in table.statements():
                connection.execute(statement)
        versions = [(SCHEMA_KEY, SCHEMA_VERSION), (AUTHOR_KEY, own_version())]
        connection.executemany("INSERT INTO meta VALUES (?, ?)", versions)


@functools.cache
def own_version() -> str:
    """The version of the asyncrl that runs."""
    return importlib.metadata.version("asyncrl")


def tables_in_words() -> str:
    """Each table with its columns, on one line: "name(column, ...), ..."."""
    return ", ".join(f"{table.name}({', '.join(c.name for c in table.columns)})" for table in TABLES)
