"""The advantages of a graded group whose trajectories have rewards inside: credits, turns and branches."""

from collections.abc import Sequence
from dataclasses import replace

from asyncrl.algorithms.advantages import Advantage
from asyncrl.algorithms.turns import (
    TurnRewards,
    as_runs,
    credits_by_turn,
    line_advantages,
    mean_reward,
    turns,
)
from asyncrl.recipe import Algorithm
from asyncrl.records import Score, Trajectory, TurnAdvantages
from asyncrl.rollout.complete import Graded, Worth, whole_worths
from asyncrl.rollout.credits import branch_turns, line_rewards, total_reward

CREDITS = "credits"
"""Named score of what parts of a response earned."""


def credited_worths(
    sampled: Sequence[Graded], greedy: Graded | None, advantage: Advantage, algorithm: Algorithm
) -> list[Worth]:
    """As `whole_worths`, with what turns and branches are worth each."""
    graded = [*sampled, *([] if greedy is None else [greedy])]
    if algorithm.credit == "turns" and any(score.credits for _, score in graded):
        rewards = [_turn_rewards(each) for each in graded]
        baseline = None if greedy is None else rewards.pop()
        lengths = [trajectory.num_sampled_in_all() for trajectory, _ in sampled]
        found = turns(rewards, lengths, advantage, algorithm, greedy=baseline)
        pairs = zip(sampled, found, strict=True)
        return [Worth(each[0], _runs(trajectory, each)) for (trajectory, _), each in pairs]
    # Under gae the trainer adds the credits, at their tokens.
    lines = [line_rewards(*each, has_credits=not algorithm.needs_critic()) for each in graded]
    means = [mean_reward([line.reward for line in own]) for own in lines]
    if any(score.branches for _, score in sampled):
        baseline_reward = None if greedy is None else means[-1]
        of_lines = line_advantages(lines[: len(sampled)], advantage, algorithm, greedy_reward=baseline_reward)
        return [
            Worth(own[0], as_runs(*branch_turns(trajectory, own)) if len(own) > 1 else [])
            for (trajectory, _), own in zip(sampled, of_lines, strict=True)
        ]
    earned = [
        (trajectory, replace(score, reward=reward, scores=_parts(score)))
        for (trajectory, score), reward in zip(graded, means, strict=True)
    ]
    return whole_worths(earned[: len(sampled)], None if greedy is None else earned[-1], advantage, algorithm)


def without_turns(worth: Worth, lengths: Sequence[int], are_left_out: Sequence[bool]) -> Worth:
    """The same with an advantage of 0 for the turns left out, of those with sampled `lengths`."""
    runs = worth.turns or [(length, worth.advantage) for length in lengths]
    values = [0.0 if is_left_out else own for is_left_out, (_, own) in zip(are_left_out, runs, strict=True)]
    return Worth(values[0], as_runs(lengths, values)) if values else worth


def _runs(trajectory: Trajectory, advantages: Sequence[float]) -> TurnAdvantages:
    lengths = trajectory.turn_lengths()
    return as_runs(lengths, advantages) if lengths else []


def _parts(score: Score) -> dict[str, float]:
    """Its named scores, and the sum of its credits as one more."""
    credits = {CREDITS: total_reward(0.0, score.credits)} if score.scores and score.credits else {}
    return {**score.scores, **credits}


def _turn_rewards(graded: Graded) -> TurnRewards:
    trajectory, score = graded
    assert score.reward is not None
    return TurnRewards(score.reward, credits_by_turn(score.credits, trajectory.turn_lengths()))
