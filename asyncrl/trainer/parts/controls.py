"""Parts that set a number of the step by what was measured: entropy target, rate scaling, loss scale."""

import math
from collections.abc import Mapping
from typing import Any, TypedDict

from asyncrl.recipe import Recipe
from asyncrl.trainer.step.diagnostics import Tally
from asyncrl.trainer.step.learner import Learner
from asyncrl.trainer.step.optimizer import loss_scaler
from asyncrl.trainer.step.part import Step, StepPart


class EntropyState(TypedDict):
    """State between two steps."""

    coefficient: float
    is_low: bool
    """Whether the last step's entropy was at most the target."""


class EntropyTarget(StepPart):
    """The coefficient of the entropy bonus, led by the entropy of each step to a target.

    After a step of entropy H the coefficient c becomes c + delta where H <= target and c - delta above it,
    within [0, most]; the next step's bonus is c where H <= target, and 0 above it (Skywork-OR1, He et al.
    2025, arXiv 2505.22312; TRL's use_adaptive_entropy). H is the mean over the tokens that count of all
    ranks, as the metric. The state is in the checkpoint: the next step's bonus is a function of it alone.
    """

    def __init__(self, learner: Learner, recipe: Recipe) -> None:
        self._learner = learner
        self._section = recipe.algorithm.entropy_bonus
        # Before the first step no entropy is known: the bonus holds.
        self.entropy = EntropyState(coefficient=recipe.algorithm.entropy_bonus.coefficient, is_low=True)

    def prepare(self, step: Step) -> None:
        self._learner.objective.entropy_coefficient = self.coefficient()

    def finish(self, metrics: Mapping[str, float]) -> dict[str, float]:
        self.saw(metrics["entropy"])
        return {"entropy_coefficient": self._learner.objective.entropy_coefficient}

    def coefficient(self) -> float:
        """Weight of the bonus in the next step."""
        return self.entropy["coefficient"] if self.entropy["is_low"] else 0.0

    def saw(self, entropy: float) -> None:
        """A step of this entropy is over; NaN, of a step without tokens, changes nothing."""
        section, target = self._section, self._section.target
        assert target is not None
        if math.isnan(entropy):
            return
        is_low = entropy <= target
        moved = self.entropy["coefficient"] + (section.step if is_low else -section.step)
        kept = min(max(moved, 0.0), section.max_coefficient)
        self.entropy = EntropyState(coefficient=kept, is_low=is_low)

    def state(self) -> dict[str, Any]:
        return {"entropy": self.entropy}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.entropy = state.get("entropy", self.entropy)


class RateScaling(StepPart):
    """The learning rate of each optimizer step times sqrt(ESS / N).

    VCPO, Huang et al. 2026 (arXiv 2602.17616). On-policy all N weights are 1, and so is the factor. The
    square root is how Adam's rate follows a batch size.
    """

    def __init__(self, learner: Learner, recipe: Recipe) -> None:
        self._latest = self._taken = 0.0

    def prepare(self, step: Step) -> None:
        self._taken = 0.0

    def rate_factor(self, tally: Tally) -> float:
        self._latest = math.sqrt(tally.latest_effective_share())
        return self._latest

    def stepped(self, norm: float | None) -> None:
        if norm is not None:
            self._taken = self._latest

    def finish(self, metrics: Mapping[str, float]) -> dict[str, float]:
        return {"learning_rate_scale": self._taken}


class LossScale(StepPart):
    """Columns of the optimizer's loss scale, which a model in float16 has."""

    def __init__(self, learner: Learner, recipe: Recipe) -> None:
        self._optimizer = learner.optimizer
        self._num_skipped = 0

    def prepare(self, step: Step) -> None:
        self._num_skipped = 0

    def stepped(self, norm: float | None) -> None:
        self._num_skipped += norm is None

    def finish(self, metrics: Mapping[str, float]) -> dict[str, float]:
        scaler = loss_scaler(self._optimizer)
        assert scaler is not None
        return {"loss_scale": scaler.value(), "skipped_steps": float(self._num_skipped)}
