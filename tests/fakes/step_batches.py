"""The metrics that a step's batch gives, without the run around it."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from asyncrl.controller.step_batches import StepBatches
from asyncrl.replay.group import Group


def metrics_of_step(groups: Sequence[Group], **options: Any) -> dict[str, Any]:
    """The columns of a step that takes `groups`; `options` are those of StepBatches."""
    nothing = SimpleNamespace(taken=lambda *_: None, took=lambda _: None)
    queue = SimpleNamespace(
        has_signal=lambda _: True,
        live={},
        pop_aborted_lengths=list,
        num_steps_taken=1,
        num_admitted=1,
        num_dropped=0,
        settings=SimpleNamespace(groups_per_batch=1),
    )
    parts: Any = (None, queue, None, nothing, nothing, None, None, 1.0)
    return StepBatches(*parts, **options)._metrics_of(list(groups), 0)
