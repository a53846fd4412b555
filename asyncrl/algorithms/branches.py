"""Advantages of branches that are judged each: what each is worth in the place of its trajectory.

Plain floats, as in `advantages`. A trajectory counts once in its group, whatever its branches: its reward R_i
is the mean of theirs, r_{i,b}. The group's baseline, its std and all else that an advantage takes from the
group come from the R.
"""

import dataclasses
import statistics
from collections.abc import Sequence

from asyncrl.algorithms.advantages import Advantage, GroupRewards, group_advantages
from asyncrl.recipe.algorithm import Algorithm


def mean_reward(rewards: Sequence[float]) -> float:
    """R_i = mean of r_{i,b}, correctly rounded: branches of equal rewards have that reward together."""
    return float(statistics.mean(rewards))


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
