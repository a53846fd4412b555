"""Learning rates of a run, step by step: each is a function of the recipe and the step alone.

So resumed runs, restarted trainers and `asyncrl reproduce` use the same values and store no state.
"""

import math
from dataclasses import dataclass

from asyncrl.recipe.sections.trainer import Trainer
from asyncrl.records import PolicyVersion


@dataclass(frozen=True, slots=True)
class Schedule:
    """Learning rates of one model's optimizer."""

    kind: str
    """One of trainer.learning_rate_schedule."""
    peak: float
    floor: float
    warmup_steps: int
    end_step: int
    """Last step above the floor; steps count from 1, in the unit of the recipe."""
    decay_steps: int
    """Length of the fall: the last steps up to `end_step`."""
    first_version: PolicyVersion = 0
    """The version that the model is first trained from."""
    steps_per_batch: int | None = None
    """Optimizer steps per batch where the schedule counts those; None where it counts batches."""
    muon_share: float = 1.0
    """Rate of Muon's matrices, as a share of the rate of each step."""

    def rate(self, version: PolicyVersion, part: int = 0) -> float:
        """The rate of the mini-batch `part`, counted from 0, of the batch that is trained from `version`."""
        batches = version - self.first_version
        return self.at(
            batches + 1 if self.steps_per_batch is None else batches * self.steps_per_batch + part + 1
        )

    def at(self, step: int) -> float:
        """Rate of a step: n / warmup_steps of the peak in step n of the warm-up, then the peak, and below it
        from the second step of the fall on: as torch's LinearLR and CosineAnnealingLR, one after the other.
        """
        if step <= self.warmup_steps:
            return self.peak * step / self.warmup_steps
        fallen = step - 1 - (self.end_step - self.decay_steps)
        if self.kind == "constant" or fallen <= 0:
            return self.peak
        if fallen >= self.decay_steps:
            return self.floor
        share = fallen / self.decay_steps
        left = (1 + math.cos(math.pi * share)) / 2 if self.kind == "cosine" else 1 - share
        return self.floor + (self.peak - self.floor) * left


def make_schedule(
    section: Trainer, peak: float, *, steps_per_batch: int, first_version: PolicyVersion = 0
) -> Schedule:
    """The schedule of `section` for a model that is trained from `first_version` on.

    Raises ValueError for a fall that has no room behind the warm-up.
    """
    kind, counts_batches = section.learning_rate_schedule, section.schedule_unit == "batches"
    num_batches = max(1, section.num_steps - first_version)
    end = section.schedule_steps or num_batches * (1 if counts_batches else steps_per_batch)
    room = end - section.warmup_steps
    decay = (section.decay_steps or math.ceil(end / 10)) if kind == "wsd" else room
    if kind != "constant" and not 1 <= decay <= room:
        fall = f" and its fall takes {decay}" if kind == "wsd" else ""
        raise ValueError(
            f"trainer.learning_rate_schedule {kind} ends at step {end} (in {section.schedule_unit}), but "
            f"trainer.warmup_steps is {section.warmup_steps}{fall}: the rate has no room to fall. Lower "
            f"trainer.warmup_steps{' or trainer.decay_steps' if fall else ''}, or raise "
            f"trainer.schedule_steps (default: the whole run, trainer.num_steps)."
        )
    return Schedule(
        kind=kind,
        peak=peak,
        floor=peak * section.min_learning_rate_share,
        warmup_steps=section.warmup_steps,
        end_step=end,
        decay_steps=decay,
        first_version=first_version,
        steps_per_batch=None if counts_batches else steps_per_batch,
        muon_share=(section.muon_learning_rate or section.learning_rate) / section.learning_rate,
    )
