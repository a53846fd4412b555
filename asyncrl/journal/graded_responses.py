"""Responses of groups with their recorded verdicts, texts and tokens, to select among them.

Steps count from 1. A response that no step trained stands at the step after its admission, as in
`trained_responses`.
"""

import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from asyncrl.journal.connection import Readable
from asyncrl.journal.packing import NUMBER_BYTES, unpack_tokens
from asyncrl.records import Observed, Segment

_GROUPS = "SELECT task_id, group_id FROM groups ORDER BY group_id"
_RESPONSES = f"""
WITH members AS (SELECT trajectory_id, branch_of FROM trajectories
                 WHERE group_id IN (SELECT value FROM json_each(:groups))),
     names AS (SELECT trajectory_id FROM members),
     lengths AS (
         SELECT trajectory_id, SUM(LENGTH(tokens)) / {NUMBER_BYTES} AS tokens, MIN(version) AS low,
                MAX(version) AS high
         FROM segments WHERE trajectory_id IN names GROUP BY trajectory_id
         UNION ALL
         SELECT trajectory_id, num_tokens, version_min, version_max FROM compacted
         WHERE trajectory_id IN names)
SELECT g.group_id, t.trajectory_id, coalesce(g.taken_version, g.admitted_version) + 1, g.prompt, t.finish,
       t.outcome, t.correctness, t.reward, t.extracted, t.detail, t.text, coalesce(l.tokens, 0),
       coalesce(l.low, g.admitted_version), coalesce(l.high, g.admitted_version),
       EXISTS (SELECT 1 FROM compacted AS c WHERE c.trajectory_id = t.trajectory_id),
       EXISTS (SELECT 1 FROM observations AS o WHERE o.trajectory_id = t.trajectory_id),
       t.trajectory_id IN (SELECT branch_of FROM members WHERE branch_of IS NOT NULL)
FROM groups AS g JOIN trajectories AS t USING (group_id) LEFT JOIN lengths AS l USING (trajectory_id)
WHERE g.group_id IN (SELECT value FROM json_each(:groups)) AND t.branch_of IS NULL
ORDER BY g.group_id, t.sample
"""
_PROMPT_TOKENS = """
SELECT trajectory_id, prompt_tokens FROM trajectories
WHERE trajectory_id IN (SELECT value FROM json_each(:wanted))
"""
_PARTS = """
SELECT trajectory_id, position, version, tokens, NULL FROM segments
WHERE trajectory_id IN (SELECT value FROM json_each(:wanted))
UNION ALL
SELECT trajectory_id, position, NULL, tokens, notes FROM observations
WHERE trajectory_id IN (SELECT value FROM json_each(:wanted))
ORDER BY 1, 2
"""


class GradedResponse(NamedTuple):
    """A trajectory of a group, its branches left out."""

    group_id: int
    trajectory_id: str
    step: int
    """Step that trained it first."""
    prompt: str
    """The text that the model continued."""
    finish: str | None
    outcome: str | None
    """correct, wrong, no_answer, fault; None while it is not graded."""
    correctness: float | None
    reward: float | None
    extracted: str | None
    detail: str | None
    text: str | None
    """The text that the verifier read: of several turns the last one. None once compacted."""
    num_tokens: int
    """Sampled, without those of branches."""
    version_min: int
    version_max: int
    is_compacted: bool
    has_turns: bool
    """Something answered its first turn, and is still journaled."""
    has_branches: bool


class ResponseTokens(NamedTuple):
    """The tokens of one trajectory, without its branches."""

    prompt: list[int]
    parts: list[Segment | Observed]
    """In order; their log-probs are left out."""


def read_groups(journal: Readable) -> dict[str, list[int]]:
    """Task id -> its groups, in the order of admission, of every task that was asked."""
    found: dict[str, list[int]] = {}
    for task_id, group_id in journal.read(_GROUPS):
        found.setdefault(task_id, []).append(group_id)
    return found


def read_graded(journal: Readable, groups: Sequence[int]) -> list[GradedResponse]:
    """All responses of the groups, in the order of admission."""
    rows = journal.read(_RESPONSES, {"groups": json.dumps(list(groups))})
    return [GradedResponse(*row[:-3], *map(bool, row[-3:])) for row in rows]


def read_tokens(journal: Readable, wanted: Iterable[str]) -> dict[str, ResponseTokens]:
    """Trajectory id -> its tokens; nothing is left of compacted ones."""
    values = {"wanted": json.dumps(list(wanted))}
    found = {
        name: ResponseTokens(unpack_tokens(tokens), [])
        for name, tokens in journal.read(_PROMPT_TOKENS, values)
    }
    for name, _, version, tokens, notes in journal.read(_PARTS, values):
        part = Observed(unpack_tokens(tokens), notes) if version is None else _sampled(version, tokens)
        found[name].parts.append(part)
    return found


def _sampled(version: int, tokens: bytes) -> Segment:
    return Segment(version, unpack_tokens(tokens), [])


def count_graded(journal: Readable) -> tuple[int, int]:
    """Graded responses, and those of them whose texts are there."""
    ((num_graded, num_texts),) = journal.read(
        "SELECT count(*), count(text) FROM trajectories WHERE outcome IS NOT NULL AND branch_of IS NULL"
    )
    return num_graded, num_texts
