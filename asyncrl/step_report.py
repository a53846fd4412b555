"""The row of a training step: from the request for its batch to the request for the next one."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from asyncrl.accounting import Reading, rollout_metrics, trend_metrics
from asyncrl.observe.observer import Observer
from asyncrl.replay.wire import TakeRequest
from asyncrl.types import PolicyVersion


class StepReport:
    """Told of every request and of every batch given; tells the observer once per step."""

    def __init__(
        self,
        observer: Observer,
        *,
        read: Callable[[], Reading],
        pool_metrics: Callable[[], dict[str, float]],
        heldout: Callable[[], Sequence[tuple[PolicyVersion, float]]],
    ) -> None:
        self._observer = observer
        self._read = read
        self._pool_metrics = pool_metrics
        self._heldout = heldout
        self._open: tuple[PolicyVersion, Reading] | None = None
        """The step that the trainer asked for last, and the meters at that moment."""
        self._batch: dict[str, Any] = {}
        self._rewards: list[float] = []
        self.num_steps = 0
        """Of all trainers since this start, repeated ones too."""

    def given(self, batch: dict[str, Any]) -> None:
        """What is known of the batch that the trainer has now."""
        self._batch = batch

    def asked(self, request: TakeRequest) -> None:
        """The trainer asks for the batch of `request.step`, and so has finished the step before."""
        before, now = self._open, self._read()
        if before is not None and before[0] == request.step:
            return
        self._open = (request.step, now)
        if before is None or request.step_metrics is None or before[0] != request.step - 1:
            return
        speed = rollout_metrics(before[1], now)
        waited = sum(request.step_metrics.get(name, 0.0) for name in ("wait_seconds", "drain_seconds"))
        idle = min(1.0, waited / speed["step_seconds"])
        trained = {
            name: value if math.isfinite(value) else None for name, value in request.step_metrics.items()
        }
        self.num_steps += 1
        self._rewards.append(self._batch.get("correct_mean") or 0.0)
        self._observer.step(
            {
                **self._batch,
                **trained,
                **speed,
                **self._pool_metrics(),
                **trend_metrics(self._rewards, self._heldout()),
                "trainer_idle_share": idle,
                "step": request.step,
            }
        )
