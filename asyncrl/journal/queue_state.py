"""The state of the replay queue as its journal has it: what a restarted controller resumes from.

Reads only; `replay.recovery` builds the queue from it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from asyncrl.journal.connection import Readable
from asyncrl.journal.packing import unpack_logprobs, unpack_pairs, unpack_scores, unpack_tokens
from asyncrl.journal.token_columns import Told, read_of_lines, read_of_segments
from asyncrl.records import (
    Columns,
    Finish,
    Observed,
    PolicyVersion,
    RecordedCall,
    Score,
    Segment,
    Trajectory,
    TurnAdvantages,
)

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

_PARTS = """
SELECT position, version, is_continued, tokens, logprobs, NULL FROM segments WHERE trajectory_id = :name
UNION ALL
SELECT position, NULL, NULL, tokens, NULL, notes FROM observations WHERE trajectory_id = :name
ORDER BY position, version
"""
"""An observation may be empty; NULL sorts first, and so before the turn that follows it."""


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
    """A group without its task, which is in the data file."""

    group_id: int
    task_id: str
    prompt: str
    admitted_version: PolicyVersion
    state: str
    taken_version: PolicyVersion | None
    num_uses: int
    """Batches that held it."""
    trajectories: list[Trajectory] = field(default_factory=list)
    scores: dict[str, Score] = field(default_factory=dict)
    advantages: dict[str, float] = field(default_factory=dict)
    turn_advantages: dict[str, TurnAdvantages] = field(default_factory=dict)
    columns: dict[str, Columns] = field(default_factory=dict)
    """Trajectory or branch -> what came for its tokens once it was finished."""


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
    return _groups(journal, samples_per_group, _LIVE)


def groups_taken_since(
    journal: Readable, version: PolicyVersion, *, samples_per_group: int
) -> list[StoredGroup]:
    """Groups that the trainer took first at `version` or later, whole, in admission order."""
    return _groups(journal, samples_per_group, f"taken_version >= {version}")


def live_tasks(journal: Readable) -> list[tuple[str, str]]:
    """(task id, prompt) of the open and ready groups, in admission order."""
    rows = journal.read(f"SELECT task_id, prompt FROM groups WHERE {_LIVE} ORDER BY group_id")
    return [(task_id, prompt) for task_id, prompt in rows]


def _groups(journal: Readable, samples_per_group: int, where: str) -> list[StoredGroup]:
    groups = [
        StoredGroup(*row)
        for row in journal.read(
            "SELECT group_id, task_id, prompt, admitted_version, state, taken_version, "
            "(taken_version IS NOT NULL) + "
            "(SELECT count(*) FROM repetitions r WHERE r.group_id = groups.group_id) "
            f"FROM groups WHERE {where} ORDER BY group_id"
        )
    ]
    for group in groups:
        _add_trajectories(journal, group, samples_per_group)
        group.columns = read_of_lines(journal, group.group_id)
    return groups


def _add_trajectories(journal: Readable, group: StoredGroup, samples_per_group: int) -> None:
    rows = journal.read(
        "SELECT trajectory_id, sample, prompt_tokens, finish, outcome, correctness, reward, scores, credits, "
        "advantage, turn_advantages, extracted, detail, verify_seconds, branch_of, role FROM trajectories "
        "WHERE group_id = ? ORDER BY sample, length(trajectory_id), trajectory_id",
        (group.group_id,),
    )
    told = read_of_segments(journal, group.group_id)
    for name, sample, prompt, finish, outcome, *scored, branch_of, role in rows:
        correctness, reward, scores, credits, advantage, turn_advantages, extracted, detail, seconds = scored
        trajectory = Trajectory(
            name,
            tuple(unpack_tokens(prompt)),
            finish=Finish(finish) if finish else None,
            is_greedy=sample == samples_per_group,
            role=role,
        )
        for part in _parts(journal, name, told):
            if isinstance(part, Segment):
                trajectory.extend(part)
            else:
                trajectory.observe(part)
        if branch_of is not None:
            # Its trajectory is the row before it, or before its other branches.
            group.trajectories[-1].branches.append(trajectory)
            continue
        trajectory.calls = _calls(journal, name)
        group.trajectories.append(trajectory)
        if outcome is not None:
            group.scores[name] = Score(
                *(outcome, correctness, reward, extracted, detail, seconds),
                credits=unpack_pairs(credits),
                scores=unpack_scores(scores),
                branches=_branch_scores(journal, name),
            )
        if advantage is not None:
            group.advantages[name] = advantage
        if turn_advantages is not None:
            group.turn_advantages[name] = unpack_pairs(turn_advantages)


def _branch_scores(journal: Readable, trajectory_id: str) -> dict[str, Score]:
    """Those of branches that were judged by themselves, in the order of their numbers. "/" follows the "."
    of their names."""
    query = (
        "SELECT trajectory_id, outcome, correctness, reward, extracted, detail, verify_seconds "
        "FROM branch_verdicts WHERE trajectory_id >= ?1 AND trajectory_id < ?1 || '/' "
        "ORDER BY length(trajectory_id), trajectory_id"
    )
    return {name: Score(*values) for name, *values in journal.read(query, (trajectory_id,))}


def _calls(journal: Readable, trajectory_id: str) -> list[RecordedCall]:
    query = (
        "SELECT ordinal, choice, digest, branch, turn FROM calls WHERE trajectory_id = ? "
        "ORDER BY ordinal, choice"
    )
    return [RecordedCall(*row) for row in journal.read(query, (trajectory_id,))]


def _parts(
    journal: Readable, trajectory_id: str, told: Mapping[tuple[str, int], Told]
) -> list[Segment | Observed]:
    return [
        Observed(unpack_tokens(tokens), notes)
        if version is None
        else Segment(
            version,
            unpack_tokens(tokens),
            unpack_logprobs(logprobs),
            bool(is_continued),
            *told.get((trajectory_id, position), ({}, {})),
        )
        for position, version, is_continued, tokens, logprobs, notes in journal.read(
            _PARTS, {"name": trajectory_id}
        )
    ]
