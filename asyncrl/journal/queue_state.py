"""Groups of the replay queue as its journal has them: what a restarted controller resumes from, and batches
that were taken, as a trainer that repeats a step is given them.

Reads only; `ReplayQueue.restore` builds the queue from it. Batches are named by their `taken_version`: step
taken_version + 1 trains that version on the batch.
"""

import itertools
import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from asyncrl.errors import QueueError
from asyncrl.journal.connection import Readable
from asyncrl.journal.packing import (
    columns_of_lines,
    columns_of_segments,
    sequences_of,
    unpack_logprobs,
    unpack_pairs,
    unpack_scores,
    unpack_tokens,
)
from asyncrl.journal.starts import read_fact
from asyncrl.records import (
    Batch,
    Columns,
    Finish,
    Observed,
    PolicyVersion,
    RecordedCall,
    Score,
    ScoredSequence,
    Segment,
    Trajectory,
    TurnAdvantages,
    root_id,
    source_of,
)

COMPACTED_BEFORE = "compacted_before"
"""Key in `meta`: the batches of versions below this one, which are those of steps 1 to it, have no tokens."""

_LIVE = "state IN ('open', 'ready')"
_TOTALS = """
SELECT count(*), coalesce(sum(state = 'dropped'), 0), coalesce(max(taken_version) + 1, 0),
       (SELECT coalesce(max(version), 0) FROM segments)
FROM groups
"""
_TAKEN_TOKENS = """
SELECT g.taken_version, sum(length(s.tokens) / 4) FROM groups g JOIN trajectories t USING (group_id)
JOIN segments s USING (trajectory_id) WHERE g.state = 'taken' AND t.advantage IS NOT NULL
GROUP BY g.taken_version
"""
_REPEATED_TOKENS = """
SELECT r.taken_version, sum(length(s.tokens) / 4) FROM repetitions r JOIN trajectories t USING (group_id)
JOIN segments s USING (trajectory_id) WHERE t.advantage IS NOT NULL
AND EXISTS (SELECT 1 FROM groups g WHERE g.taken_version = r.taken_version AND g.state = 'taken')
GROUP BY r.taken_version
"""
_BATCH = """
SELECT group_id FROM (SELECT group_id, 0 AS is_repeated FROM groups WHERE taken_version = :version
                      UNION ALL SELECT group_id, 1 FROM repetitions WHERE taken_version = :version)
ORDER BY is_repeated, group_id
"""

_GROUPS = """
SELECT group_id, task_id, prompt, admitted_version, state, taken_version,
       (taken_version IS NOT NULL) + (SELECT count(*) FROM repetitions r WHERE r.group_id = groups.group_id)
FROM groups WHERE {where} ORDER BY group_id
"""
_TRAJECTORIES = """
SELECT trajectory_id, branch_of, sample, prompt_tokens, finish, role, advantage, turn_advantages,
       outcome, correctness, reward, extracted, detail, verify_seconds, credits, scores
FROM trajectories WHERE group_id = ? ORDER BY sample, length(trajectory_id), trajectory_id
"""
# An observation may be empty; NULL sorts first, and so before the turn that follows it.
_PARTS = """
WITH names AS (SELECT trajectory_id FROM trajectories WHERE group_id = :group)
SELECT trajectory_id, position, version, is_continued, tokens, logprobs, NULL FROM segments
WHERE trajectory_id IN names
UNION ALL
SELECT trajectory_id, position, NULL, NULL, tokens, NULL, notes FROM observations WHERE trajectory_id IN names
ORDER BY position, version
"""
_CALLS = """
SELECT trajectory_id, ordinal, choice, digest, branch, turn FROM calls JOIN trajectories USING (trajectory_id)
WHERE group_id = ? ORDER BY ordinal, choice
"""
_BRANCH_VERDICTS = """
SELECT v.trajectory_id, v.outcome, v.correctness, v.reward, v.extracted, v.detail, v.verify_seconds
FROM branch_verdicts v JOIN trajectories USING (trajectory_id) WHERE group_id = ?
ORDER BY length(v.trajectory_id), v.trajectory_id
"""


@dataclass(frozen=True, slots=True)
class Totals:
    num_admitted: int
    num_dropped: int
    num_steps_taken: int
    """Also the version of the trainer that takes the next new batch."""
    highest_token_version: PolicyVersion
    """The newest that sampled a token; 0 without tokens."""


@dataclass(slots=True)
class StoredGroup:
    """A group without its task, which is in the data file. Fields as those of `Group`."""

    group_id: int
    task_id: str
    prompt: str
    admitted_version: PolicyVersion
    state: str
    taken_version: PolicyVersion | None
    num_uses: int
    trajectories: list[Trajectory] = field(default_factory=list)
    scores: dict[str, Score] = field(default_factory=dict)
    advantages: dict[str, float] = field(default_factory=dict)
    turn_advantages: dict[str, TurnAdvantages] = field(default_factory=dict)
    columns: dict[str, Columns] = field(default_factory=dict)

    def source(self) -> str:
        """`Task.source` of its task."""
        return source_of(self.task_id)


def read_totals(journal: Readable) -> Totals:
    ((num_admitted, num_dropped, num_steps_taken, highest),) = journal.read(_TOTALS)
    return Totals(num_admitted, num_dropped, num_steps_taken, highest)


def newest_commit(journal: Readable) -> PolicyVersion:
    """The newest version with a durable checkpoint; 0 before the first one."""
    ((version,),) = journal.read("SELECT coalesce(max(version), 0) FROM commits")
    return int(version)


def taken_tokens(journal: Readable) -> dict[PolicyVersion, int]:
    """Version that took a batch -> tokens of its new groups, of the batches that no checkpoint covers."""
    return dict(journal.read(_TAKEN_TOKENS))


def repeated_tokens(journal: Readable) -> dict[PolicyVersion, int]:
    """Version that took a batch -> tokens of its repeated groups, of batches that no checkpoint covers."""
    return dict(journal.read(_REPEATED_TOKENS))


def live_groups(journal: Readable, *, samples_per_group: int) -> list[StoredGroup]:
    """Open and ready groups, whole, in admission order; a trajectory after the samples is a greedy one."""
    return list(read_groups(journal, _LIVE, samples_per_group=samples_per_group))


def groups_taken_since(
    journal: Readable, version: PolicyVersion, *, samples_per_group: int
) -> list[StoredGroup]:
    """Groups that the trainer took first at `version` or later, whole, in admission order."""
    return list(read_groups(journal, f"taken_version >= {version}", samples_per_group=samples_per_group))


def live_tasks(journal: Readable) -> list[tuple[str, str]]:
    """(task id, prompt) of the open and ready groups, in admission order."""
    rows = journal.read(f"SELECT task_id, prompt FROM groups WHERE {_LIVE} ORDER BY group_id")
    return [(task_id, prompt) for task_id, prompt in rows]


def load_batch(journal: Readable, version: PolicyVersion, temperature: float) -> Batch:
    """The batch that the trainer of `version` took. Raises QueueError as `load_groups`."""
    groups = load_groups(journal, version)
    return Batch(version, temperature, list(itertools.chain.from_iterable(groups)))


def load_groups(journal: Readable, version: PolicyVersion) -> Iterator[list[ScoredSequence]]:
    """Yields, per group, what the trainer of `version` was given, in the order of the groups' first takes.

    One read per group: a batch has millions of tokens, and the caller may have others to serve meanwhile.
    Raises QueueError when its tokens were compacted.
    """
    step = version + 1
    if version < (boundary := compacted_before(journal)):
        raise QueueError(
            f"The tokens of steps 1 to {boundary} are compacted in {journal.path}: step {step} cannot be "
            f"trained again. Put a checkpoint of version {boundary} or later back in place, or use another "
            f"run_folder; replay.keep_steps says how long tokens are kept."
        )
    for (group_id,) in journal.read(_BATCH, {"version": version}):
        (group,) = read_groups(journal, f"group_id = {group_id}")
        if not all(t.prompt_tokens for t in group.trajectories if t.trajectory_id in group.advantages):
            raise QueueError(f"{journal.path} no longer holds all tokens of step {step}: they are compacted.")
        yield sequences_of(group)


def compacted_before(journal: Readable) -> PolicyVersion:
    """The oldest version whose batch still has its tokens: those of steps 1 to that number are gone."""
    return int(read_fact(journal, COMPACTED_BEFORE) or 0)


def read_columns(journal: Readable, version: PolicyVersion) -> dict[str, Any]:
    """Columns of the batch as the trainer of `version` took it (`statements.batch_columns`)."""
    found = journal.read("SELECT columns FROM batch_columns WHERE taken_version = ?", (version,))
    return dict(json.loads(found[0][0])) if found else {}


def read_groups(
    journal: Readable, where: str, *, samples_per_group: int | None = None
) -> Iterator[StoredGroup]:
    """Yields the groups of an SQL condition, whole, in admission order."""
    with journal.reading() as db:
        for row in db.execute(_GROUPS.format(where=where)).fetchall():
            group = StoredGroup(*row)
            _fill(db, group, samples_per_group)
            yield group


def _fill(db: sqlite3.Connection, group: StoredGroup, samples_per_group: int | None) -> None:
    number = (group.group_id,)
    branches: dict[str, dict[str, Score]] = defaultdict(dict)
    for name, *verdict in db.execute(_BRANCH_VERDICTS, number):
        branches[root_id(name)][name] = Score(*verdict)
    lines: dict[str, Trajectory] = {}
    for name, branch_of, sample, prompt, finish, role, advantage, turns, *judged in db.execute(
        _TRAJECTORIES, number
    ):
        lines[name] = Trajectory(
            name,
            tuple(unpack_tokens(prompt)),
            finish=Finish(finish) if finish else None,
            is_greedy=sample == samples_per_group,
            role=role,
        )
        if branch_of is not None:
            lines[branch_of].branches.append(lines[name])
            continue
        group.trajectories.append(lines[name])
        outcome, correctness, reward, extracted, detail, seconds, credits, scores = judged
        if outcome is not None:
            group.scores[name] = Score(
                *(outcome, correctness, reward, extracted, detail, seconds),
                credits=unpack_pairs(credits),
                scores=unpack_scores(scores),
                branches=branches.get(name, {}),
            )
        if advantage is not None:
            group.advantages[name] = advantage
        if turns is not None:
            group.turn_advantages[name] = unpack_pairs(turns)
    told = columns_of_segments(db, group.group_id)
    for name, position, version, is_continued, tokens, logprobs, notes in db.execute(
        _PARTS, {"group": group.group_id}
    ):
        if version is None:
            lines[name].observe(Observed(unpack_tokens(tokens), notes))
        else:
            numbers = unpack_tokens(tokens), unpack_logprobs(logprobs), bool(is_continued)
            lines[name].extend(Segment(version, *numbers, *told.get((name, position), ({}, {}))))
    for name, *call in db.execute(_CALLS, number):
        lines[name].calls.append(RecordedCall(*call))
    group.columns = columns_of_lines(db, group.group_id)
