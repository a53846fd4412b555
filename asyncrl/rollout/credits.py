"""Rewards inside a trajectory: at which of its sampled tokens those of turns and of spans lie.

A reward lies at the last token of what earned it. The reward of a turn, given by the verifier or by the
environment (`Observation.reward`), lies at the turn's last sampled token; that of a span at the token that
completes the span's text.
"""

import json
from collections import defaultdict
from itertools import accumulate

from asyncrl.model.token_counts import token_counts
from asyncrl.model.tokenizer import TextCodec
from asyncrl.records import Credits, Observed, Score, Trajectory
from verifiers.weighted_sum import weighted_sum


def credits_of(score: Score, trajectory: Trajectory, codec: TextCodec) -> Credits:
    """Rewards by place among the sampled tokens; none for a fault. The score's rewards fit the trajectory
    (`grade.with_fitting_credits`)."""
    if score.reward is None:
        return []
    found = defaultdict[int, list[float]](list)
    if score.turn_rewards:
        ends = accumulate(trajectory.turn_lengths())
        for end, reward in zip(ends, score.turn_rewards, strict=True):
            found[end - 1].append(reward)
    for end, reward in _of_environment(trajectory):
        found[end - 1].append(reward)
    if score.spans:
        first, answer = trajectory.answer_place()
        lengths = token_counts(codec.exact_text, answer, [end for _, end, _ in score.spans])
        for _, end, reward in score.spans:
            found[first + lengths[end] - 1].append(reward)
    sums = ((place, weighted_sum([(1.0, reward) for reward in found[place]])) for place in sorted(found))
    return [(place, reward) for place, reward in sums if reward]


def total_reward(reward: float, credits: Credits) -> float:
    """The reward of an outcome and what parts of the trajectory earned, added as the decimals they are
    written as."""
    if not credits:
        return reward
    return weighted_sum([(1.0, reward), *((1.0, credit) for _, credit in credits)])


def _of_environment(trajectory: Trajectory) -> list[tuple[int, float]]:
    """(sampled tokens up to its end, reward) of each turn that its environment rewarded."""
    found, count = [], 0
    for segment in (segment for line in trajectory.lines() for segment in line.segments):
        if not isinstance(segment, Observed):
            count += len(segment.tokens)
        elif count and segment.notes:
            reward = json.loads(segment.notes).get("reward")
            if reward is not None:
                found.append((count, float(reward)))
    return found
