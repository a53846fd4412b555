"""The advantages of a graded group, from its rewards and from the credits inside its trajectories."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from asyncrl.algorithms.advantages import Advantage, GroupRewards, group_advantages
from asyncrl.algorithms.turns import TurnRewards, as_runs, credits_by_turn, turns
from asyncrl.recipe import Algorithm
from asyncrl.records import Score, Trajectory, TurnAdvantages
from asyncrl.rollout.credits import total_reward

Graded = tuple[Trajectory, Score]
"""A trajectory and its score, which has a reward."""


@dataclass(frozen=True, slots=True)
class Worth:
    """The advantages of one trajectory."""

    advantage: float
    """That of its first turn, where turns differ."""
    turns: TurnAdvantages = field(default_factory=list)


def worths_of(
    sampled: Sequence[Graded], greedy: Graded | None, advantage: Advantage, algorithm: Algorithm
) -> list[Worth]:
    """In the order of `sampled`. `greedy` is the baseline where the advantage has one. Raises InputError as
    `advantages.group_advantages`."""
    lengths = [trajectory.num_sampled_in_all() for trajectory, _ in sampled]
    graded = [*sampled, *([] if greedy is None else [greedy])]
    if algorithm.credit == "turns" and any(score.credits for _, score in graded):
        found = turns(
            [_turn_rewards(each) for each in sampled],
            lengths,
            advantage,
            algorithm,
            greedy=None if greedy is None else _turn_rewards(greedy),
        )
        return [
            Worth(each[0], as_runs(trajectory.turn_lengths(), each) if trajectory.turn_lengths() else [])
            for (trajectory, _), each in zip(sampled, found, strict=True)
        ]
    rewards = [_reward(score, algorithm) for _, score in sampled]
    baseline = None if greedy is None else _reward(greedy[1], algorithm)
    group = GroupRewards(rewards, lengths, baseline, algorithm.min_group_size())
    return [Worth(each) for each in group_advantages(group, advantage, algorithm)]


def _reward(score: Score, algorithm: Algorithm) -> float:
    """The reward that the advantage gets. Under gae the trainer adds the credits, at their tokens."""
    assert score.reward is not None
    return score.reward if algorithm.needs_critic() else total_reward(score.reward, score.credits)


def _turn_rewards(graded: Graded) -> TurnRewards:
    trajectory, score = graded
    assert score.reward is not None
    return TurnRewards(score.reward, credits_by_turn(score.credits, trajectory.turn_lengths()))
