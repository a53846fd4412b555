"""Batches that were taken, read back: what a trainer that repeats a step is given.

Batches are named by their `taken_version`: step taken_version + 1 trains that version on the batch.
"""

import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any

from asyncrl.errors import QueueError
from asyncrl.journal.connection import Readable
from asyncrl.journal.packing import sequences_of_trajectory, unpack_logprobs, unpack_pairs, unpack_tokens
from asyncrl.journal.starts import read_fact
from asyncrl.journal.token_columns import Told, read_of_lines, read_of_segments
from asyncrl.records import (
    Batch,
    Columns,
    Finish,
    Observed,
    PolicyVersion,
    ScoredSequence,
    Segment,
    Trajectory,
    root_id,
    source_of,
)

COMPACTED_BEFORE = "compacted_before"
"""Key in `meta`: the batches of versions below this one, which are those of steps 1 to it, have no tokens."""

_GROUPS = """
SELECT group_id FROM (SELECT group_id, 0 AS is_repeated FROM groups WHERE taken_version = :version
                      UNION ALL SELECT group_id, 1 FROM repetitions WHERE taken_version = :version)
ORDER BY is_repeated, group_id
"""
_GROUP = """
WITH chosen AS (SELECT * FROM trajectories JOIN groups USING (group_id)
                WHERE group_id = ? AND advantage IS NOT NULL),
     parts AS (
         SELECT trajectory_id, position, version, is_continued, tokens, logprobs FROM segments
         WHERE trajectory_id IN (SELECT trajectory_id FROM chosen)
         UNION ALL
         SELECT trajectory_id, position, NULL, NULL, tokens, NULL FROM observations
         WHERE trajectory_id IN (SELECT trajectory_id FROM chosen))
SELECT t.trajectory_id, prompt_tokens, reward, advantage, credits, turn_advantages, finish, outcome, task_id,
       position, version, is_continued, tokens, logprobs
FROM chosen t LEFT JOIN parts p ON p.trajectory_id = t.trajectory_id
ORDER BY sample, length(t.trajectory_id), t.trajectory_id, position, version
"""
_BRANCH_REWARDS = """
SELECT v.trajectory_id, v.reward FROM branch_verdicts v JOIN trajectories USING (trajectory_id)
WHERE group_id = ? AND v.reward IS NOT NULL
"""


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
    for (group_id,) in journal.read(_GROUPS, {"version": version}):
        rows = journal.read(_GROUP, (group_id,))
        if not all(prompt for _, prompt, *_ in rows):
            raise QueueError(f"{journal.path} no longer holds all tokens of step {step}: they are compacted.")
        rewards = dict(journal.read(_BRANCH_REWARDS, (group_id,)))
        told = read_of_segments(journal, group_id)
        yield _sequences(rows, told, rewards, read_of_lines(journal, group_id))


def compacted_before(journal: Readable) -> PolicyVersion:
    """The oldest version whose batch still has its tokens: those of steps 1 to that number are gone."""
    return int(read_fact(journal, COMPACTED_BEFORE) or 0)


def read_columns(journal: Readable, version: PolicyVersion) -> dict[str, Any]:
    """Columns of the batch as the trainer of `version` took it (`statements.batch_columns`)."""
    found = journal.read("SELECT columns FROM batch_columns WHERE taken_version = ?", (version,))
    return dict(json.loads(found[0][0])) if found else {}


def _sequences(
    rows: list[tuple[Any, ...]],
    told: Mapping[tuple[str, int], Told],
    branch_rewards: dict[str, float],
    columns: dict[str, Columns],
) -> list[ScoredSequence]:
    """Sequences of one group; `rows` are as _GROUP selects them."""
    lines: dict[str, Trajectory] = {}
    scored: dict[str, dict[str, Any]] = {}
    for name, prompt, reward, advantage, credits, turn_advantages, finish, outcome, task_id, *part in rows:
        if name not in lines:
            ended = None if finish is None else Finish(finish)
            lines[name] = Trajectory(name, tuple(unpack_tokens(prompt)), finish=ended)
            if root_id(name) != name:
                lines[root_id(name)].branches.append(lines[name])
            else:
                scored[name] = {
                    "reward": reward,
                    "advantage": advantage,
                    "credits": unpack_pairs(credits),
                    "turn_advantages": unpack_pairs(turn_advantages),
                    "outcome": outcome,
                    "source": source_of(task_id),
                }
        position, token_version, is_continued, tokens, logprobs = part
        if tokens is not None and token_version is None:
            lines[name].segments.append(Observed(unpack_tokens(tokens)))
        elif tokens is not None:
            numbers = unpack_tokens(tokens), unpack_logprobs(logprobs), bool(is_continued)
            segment = Segment(token_version, *numbers, *told.get((name, position), ({}, {})))
            lines[name].segments.append(segment)
    return [
        sequence
        for name, values in scored.items()
        for sequence in sequences_of_trajectory(
            lines[name], **values, branch_rewards=branch_rewards, columns=columns
        )
    ]
