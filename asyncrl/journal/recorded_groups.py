"""Whole groups of graded responses with tokens and log-probs, for another run that learns their values."""

import json
from typing import Any, NamedTuple

from asyncrl.journal.connection import Readable
from asyncrl.journal.packing import unpack_logprobs, unpack_tokens

_WHOLE = """
SELECT t.group_id FROM trajectories AS t JOIN groups AS g USING (group_id)
WHERE t.branch_of IS NULL AND t.reward IS NOT NULL AND length(t.prompt_tokens) > 0
  AND EXISTS (SELECT 1 FROM segments AS s WHERE s.trajectory_id = t.trajectory_id)
  AND NOT EXISTS (SELECT 1 FROM observations AS o WHERE o.trajectory_id = t.trajectory_id)
GROUP BY t.group_id HAVING count(*) >= ? ORDER BY t.group_id LIMIT ?
"""
_RESPONSES = """
SELECT g.group_id, g.prompt, t.prompt_tokens, t.trajectory_id, t.finish, t.outcome, t.correctness, t.reward,
       t.extracted, t.detail, t.text
FROM groups AS g JOIN trajectories AS t USING (group_id)
WHERE g.group_id IN (SELECT value FROM json_each(?)) AND t.branch_of IS NULL AND t.reward IS NOT NULL
  AND EXISTS (SELECT 1 FROM segments AS s WHERE s.trajectory_id = t.trajectory_id)
ORDER BY g.group_id, t.sample
"""
_SEGMENTS = """
SELECT trajectory_id, tokens, logprobs FROM segments
WHERE trajectory_id IN (SELECT value FROM json_each(?)) ORDER BY trajectory_id, position
"""


class RecordedResponse(NamedTuple):
    tokens: list[int]
    behavior_logprobs: list[float]
    """As long as `tokens`; natural log."""
    finish: str
    outcome: str
    correctness: float | None
    reward: float
    extracted: str | None
    detail: str
    text: str


class RecordedGroup(NamedTuple):
    group_id: int
    prompt: str
    """The text that the model continued."""
    prompt_tokens: tuple[int, ...]
    responses: list[RecordedResponse]


def read_recorded_groups(journal: Readable, *, samples: int, most: int) -> list[RecordedGroup]:
    """The first `most` groups with `samples` responses or more that have one turn, a reward and their tokens,
    in the order of admission; the first `samples` responses of each."""
    names = json.dumps([group_id for (group_id,) in journal.read(_WHOLE, (samples, most))])
    rows: dict[int, list[tuple[Any, ...]]] = {}
    for row in journal.read(_RESPONSES, (names,)):
        rows.setdefault(row[0], []).append(row)
    kept = {group_id: found[:samples] for group_id, found in rows.items()}
    wanted = [str(row[3]) for found in kept.values() for row in found]
    sampled: dict[str, tuple[list[int], list[float]]] = {name: ([], []) for name in wanted}
    for name, tokens, logprobs in journal.read(_SEGMENTS, (json.dumps(wanted),)):
        sampled[name][0].extend(unpack_tokens(tokens))
        sampled[name][1].extend(unpack_logprobs(logprobs))
    return [
        RecordedGroup(
            group_id,
            found[0][1],
            tuple(unpack_tokens(found[0][2])),
            [
                RecordedResponse(
                    *sampled[row[3]], row[4], row[5], row[6], row[7], row[8], row[9] or "", row[10] or ""
                )
                for row in found
            ],
        )
        for group_id, found in kept.items()
    ]
