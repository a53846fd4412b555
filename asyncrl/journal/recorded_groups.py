"""Whole groups of graded responses with tokens and log-probs, for another run that learns their values."""

import json
from typing import NamedTuple

from asyncrl.journal.connection import Readable
from asyncrl.journal.queue_state import StoredGroup, read_groups
from asyncrl.records import Finish, Score, Trajectory

# With the texts of the trajectories that have one turn, a reward and their tokens.
_WHOLE = """
SELECT t.group_id, json_group_object(t.trajectory_id, t.text)
FROM trajectories AS t JOIN groups AS g USING (group_id)
WHERE t.branch_of IS NULL AND t.reward IS NOT NULL AND length(t.prompt_tokens) > 0
  AND EXISTS (SELECT 1 FROM segments AS s WHERE s.trajectory_id = t.trajectory_id)
  AND NOT EXISTS (SELECT 1 FROM observations AS o WHERE o.trajectory_id = t.trajectory_id)
GROUP BY t.group_id HAVING count(*) >= ? ORDER BY t.group_id LIMIT ?
"""


class RecordedResponse(NamedTuple):
    tokens: list[int]
    behavior_logprobs: list[float]
    """As long as `tokens`; natural log."""
    finish: Finish
    score: Score
    """With a reward, and without named scores and credits."""
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
    texts = {group_id: json.loads(whole) for group_id, whole in journal.read(_WHOLE, (samples, most))}
    found = []
    for group in read_groups(journal, f"group_id IN ({', '.join(map(str, texts))})"):
        own = texts[group.group_id]
        whole = [each for each in group.trajectories if each.trajectory_id in own][:samples]
        responses = [_response(group, each, own[each.trajectory_id] or "") for each in whole]
        # Theirs: an agent may have opened another trajectory with another context, or none.
        found.append(RecordedGroup(group.group_id, group.prompt, whole[0].prompt_tokens, responses))
    return found


def _response(group: StoredGroup, trajectory: Trajectory, text: str) -> RecordedResponse:
    score, finish = group.scores[trajectory.trajectory_id], trajectory.finish
    assert finish is not None
    return RecordedResponse(
        trajectory.response_tokens(),
        [logprob for segment in trajectory.sampled() for logprob in segment.behavior_logprobs],
        finish,
        Score(score.outcome, score.correctness, score.reward, score.extracted, score.detail or "", 0.0),
        text,
    )
