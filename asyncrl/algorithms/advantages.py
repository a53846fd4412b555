"""Advantages of one group: what each trajectory's reward is worth against the others of the same task.

Plain floats, so that the controller, which calls these, never imports torch. A term takes the rewards of one
group (at least two; faults have left before) and gives one advantage per trajectory, in the same order.
"""

import statistics
from collections.abc import Callable, Sequence

STD_EPSILON = 1e-6
"""Keeps grpo finite where a group's rewards are all equal; its advantages are then zero."""


def grpo(rewards: Sequence[float]) -> list[float]:
    """(r - mean) / (std + 1e-6), the sample std (n - 1) as in TRL and verl (GRPO: Shao et al. 2024)."""
    centered = dr_grpo(rewards)
    std = statistics.stdev(rewards)
    return [x / (std + STD_EPSILON) for x in centered]


def dr_grpo(rewards: Sequence[float]) -> list[float]:
    """r - mean, without the std that favours very easy and very hard tasks (Liu et al. 2025, section 3.1)."""
    if len(rewards) < 2:
        raise ValueError(f"A group has {len(rewards)} reward(s); a baseline needs at least 2.")
    # Correctly rounded: equal rewards have advantages of exactly zero.
    mean = statistics.mean(rewards)
    return [reward - mean for reward in rewards]


ADVANTAGES: dict[str, Callable[[Sequence[float]], list[float]]] = {"grpo": grpo, "dr_grpo": dr_grpo}
