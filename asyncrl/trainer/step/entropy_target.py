"""The coefficient of the entropy bonus, led by the entropy of each step to a target.

After a step of entropy H the coefficient c becomes c + delta where H <= target and c - delta above it, within
[0, most]; the next step's bonus is c where H <= target, and 0 above it (Skywork-OR1, He et al. 2025, arXiv
2505.22312; TRL's use_adaptive_entropy). H is the mean over the tokens that count of all ranks, as the metric.

What a step leaves is in the checkpoint: the next step's bonus is a function of it alone.
"""

import math
from typing import TypedDict

from asyncrl.recipe import Algorithm


class EntropyState(TypedDict):
    """State between two steps."""

    coefficient: float
    is_low: bool
    """Whether the last step's entropy was at most the target."""


class EntropyTarget:
    """The coefficient before each step. Without a target it is algorithm.entropy_coefficient."""

    def __init__(self, algorithm: Algorithm) -> None:
        self._algorithm = algorithm
        # Before the first step no entropy is known: the bonus holds.
        self.state = EntropyState(coefficient=algorithm.entropy_coefficient, is_low=True)

    def coefficient(self) -> float:
        """Weight of the bonus in the next step."""
        if self._algorithm.entropy_target is None:
            return self._algorithm.entropy_coefficient
        return self.state["coefficient"] if self.state["is_low"] else 0.0

    def saw(self, entropy: float) -> None:
        """A step is over; NaN, of a step without tokens, changes nothing."""
        target, section = self._algorithm.entropy_target, self._algorithm
        if target is None or math.isnan(entropy):
            return
        is_low = entropy <= target
        moved = self.state["coefficient"] + (section.entropy_step if is_low else -section.entropy_step)
        kept = min(max(moved, 0.0), section.max_entropy_coefficient)
        self.state = EntropyState(coefficient=kept, is_low=is_low)
