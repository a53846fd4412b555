"""The advantages of a graded group, from its rewards and from the credits inside its trajectories."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from asyncrl.algorithms.advantages import Advantage, GroupRewards, group_advantages
from asyncrl.algorithms.branches import line_advantages, mean_reward
from asyncrl.algorithms.turns import TurnRewards, as_runs, credits_by_turn, turns
from asyncrl.errors import InputError
from asyncrl.recipe import Algorithm
from asyncrl.records import Score, Trajectory, TurnAdvantages
from asyncrl.replay.group import Group
from asyncrl.rollout.credits import branch_turns, line_rewards, total_reward

CREDITS = "credits"
"""Named score of what parts of a response earned."""
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
    # Under gae the trainer adds the credits, at their tokens.
    lines = [line_rewards(*each, has_credits=not algorithm.needs_critic()) for each in graded]
    rewards = [mean_reward([line.reward for line in own]) for own in lines]
    baseline = None if greedy is None else rewards.pop()
    if any(score.branches for _, score in sampled):
        found = line_advantages(lines[: len(sampled)], advantage, algorithm, greedy_reward=baseline)
        return [
            Worth(own[0], as_runs(*branch_turns(trajectory, own)) if len(own) > 1 else [])
            for (trajectory, _), own in zip(sampled, found, strict=True)
        ]
    parts = [_parts(score) for _, score in sampled]
    group = GroupRewards(
        rewards, lengths, baseline, parts if any(parts) else (), min_size=algorithm.min_group_size()
    )
    return [Worth(each) for each in group_advantages(group, advantage, algorithm)]


@contextlib.contextmanager
def naming(group: Group) -> Iterator[None]:
    """Adds to an InputError which group it is about, and that nothing of the group is lost."""
    try:
        yield
    except InputError as error:
        raise InputError(
            f"{error} It was asked about group {group.group_id}, of the task {group.task.task_id}. Fix it "
            f"and run the same command again: the run resumes with every response that it has."
        ) from error


def without_turns(worth: Worth, lengths: Sequence[int], are_left_out: Sequence[bool]) -> Worth:
    """The same with an advantage of 0 for the turns left out, of those with sampled `lengths`."""
    runs = worth.turns or [(length, worth.advantage) for length in lengths]
    values = [0.0 if is_left_out else own for is_left_out, (_, own) in zip(are_left_out, runs, strict=True)]
    return Worth(values[0], as_runs(lengths, values)) if values else worth


def _parts(score: Score) -> dict[str, float]:
    """Its named scores, and the sum of its credits as one more."""
    credits = {CREDITS: total_reward(0.0, score.credits)} if score.scores and score.credits else {}
    return {**score.scores, **credits}


def _turn_rewards(graded: Graded) -> TurnRewards:
    trajectory, score = graded
    assert score.reward is not None
    return TurnRewards(score.reward, credits_by_turn(score.credits, trajectory.turn_lengths()))
