"""The loss scale of a model in float16: a power of two that keeps gradients inside the type's range.

Losses are sums over tokens, so scales are small: what others multiply a mean over n tokens by, divided by n.
Gradients are unscaled in float32 before they are clipped. One that overflowed takes no optimizer step, and
the next one has half the scale. Megatron gives each optimizer that it chains a scale of its own, and these
would drift apart where one overflows alone; here all optimizers of a model share one.
"""

from typing import Any, TypedDict

from megatron.core.optimizer.grad_scaler import DynamicGradScaler

from asyncrl.recipe import Trainer
from asyncrl.recipe.sections.trainer import SMALLEST_LOSS_SCALE


class LossScaling(TypedDict):
    """State of a scale, as checkpoints hold it."""

    scale: float
    steps_since_change: int
    """Optimizer steps without overflow since the scale changed."""


class LossScaler(DynamicGradScaler):
    """Megatron's dynamic scale, changed once per optimizer step, whatever number of optimizers see it."""

    def __init__(self, section: Trainer) -> None:
        super().__init__(
            initial_scale=section.first_loss_scale(),
            min_scale=SMALLEST_LOSS_SCALE,
            growth_factor=2.0,
            backoff_factor=0.5,
            growth_interval=section.loss_scale_growth_steps,
            # A second overflow would cost another batch of rollouts.
            hysteresis=1,
        )
        self._has_overflowed = False

    def update(self, found_inf: bool) -> None:
        """Megatron's call, of each chained optimizer; the same on all ranks."""
        self._has_overflowed |= found_inf

    def settle(self) -> bool:
        """After an optimizer's `step`: whether the gradient overflowed, so that it was none. Sets the scale
        of the next."""
        has_overflowed, self._has_overflowed = self._has_overflowed, False
        super().update(has_overflowed)
        return has_overflowed

    def value(self) -> float:
        """The scale of the next optimizer step."""
        return float(self._scale.item())

    def state(self) -> LossScaling:
        return LossScaling(scale=self.value(), steps_since_change=self._growth_tracker)

    def restore(self, state: LossScaling) -> None:
        self._scale.fill_(state["scale"])
        self._growth_tracker = state["steps_since_change"]


def share_loss_scaler(optimizer: Any, section: Trainer) -> None:
    """Gives all members of Megatron's optimizer one scale, before any step."""
    scaler = LossScaler(section)
    for member in optimizer.chained_optimizers:
        member.grad_scaler = scaler


def loss_scaler(optimizer: Any) -> LossScaler | None:
    """The scale that `optimizer` has; None where its model is not in float16."""
    members = getattr(optimizer, "chained_optimizers", [optimizer])
    found = getattr(members[0], "grad_scaler", None)
    return found if isinstance(found, LossScaler) else None
