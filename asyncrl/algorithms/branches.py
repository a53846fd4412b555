"""Advantages of branches that are judged each: what each is worth in the place of its trajectory.

Plain floats, as in `advantages`. A trajectory counts once in its group, whatever its branches: its reward R_i
is the mean of theirs, r_{i,b}. The group's baseline, its std and all else that an advantage takes from the
group come from the R. With roles (`agent.roles`) each role has a group of its own.
"""

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from asyncrl.algorithms.advantages import Advantage, GroupRewards, group_advantages
from asyncrl.recipe.algorithm import Algorithm


def mean_reward(rewards: Sequence[float]) -> float:
    """R_i = mean of r_{i,b}, correctly rounded: branches of equal rewards have that reward together."""
    return float(statistics.mean(rewards))


@dataclass(frozen=True, slots=True)
class LineReward:
    """Reward of a branch that was judged by itself, or of a whole trajectory."""

    role: str
    """Empty without roles."""
    reward: float
    num_tokens: int
    """Sampled ones."""


def line_advantages(
    group: Sequence[Sequence[LineReward]],
    advantage: Advantage,
    algorithm: Algorithm,
    *,
    greedy_reward: float | None = None,
) -> list[list[float]]:
    """A_{i,b} of each branch b of each trajectory i, within the group of the branch's role

    The group of a role is the trajectories in which it spoke; R_i is the mean over its branches there. Where
    these are too few for a baseline, the advantage is 0. Raises InputError as `group_advantages`.
    """
    found = [[0.0] * len(lines) for lines in group]
    for role in {line.role for lines in group for line in lines}:
        own = {i: [each for each in lines if each.role == role] for i, lines in enumerate(group)}
        spoke = {i: lines for i, lines in own.items() if lines}
        if len(spoke) < algorithm.min_group_size():
            continue
        rewards = GroupRewards(
            [mean_reward([line.reward for line in lines]) for lines in spoke.values()],
            [sum(line.num_tokens for line in lines) for lines in spoke.values()],
            greedy_reward,
            min_size=algorithm.min_group_size(),
        )
        for place, (i, lines) in enumerate(spoke.items()):
            values = [line.reward for line in lines]
            of_role = iter(branch_advantages(rewards, place, values, advantage, algorithm))
            for number, line in enumerate(group[i]):
                if line.role == role:
                    found[i][number] = next(of_role)
    return found


def branch_advantages(
    group: GroupRewards, place: int, rewards: Sequence[float], advantage: Advantage, algorithm: Algorithm
) -> list[float]:
    """A_{i,b} = advantage of R_1, ..., r_{i,b} in the place of R_i, ..., R_n, for trajectory i

    With equal rewards of branches it is the trajectory's own, to the last digit. `dr_grpo` gives (n - 1) / n
    (r_{i,b} - mean of the other R), `rloo` r_{i,b} - mean of the other R. It is defined for every advantage,
    those of recipes included, and where all R are equal it stays finite, unlike a scale of their std alone.
    Raises InputError as `group_advantages`.
    """
    found: dict[float, float] = {}
    for reward in rewards:
        if reward not in found:
            replaced = list(group.rewards)
            replaced[place] = reward
            one = dataclasses.replace(group, rewards=replaced)
            found[reward] = group_advantages(one, advantage, algorithm)[place]
    return [found[reward] for reward in rewards]
