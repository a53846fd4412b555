"""Weights & Biases: one run, which later starts continue by its id.

Its own counter of rows only rises, so curves are drawn over the value `step`: steps that a resumed run trains
again follow the superseded ones, and `resumed_from` names the step before them.
"""

import os
import secrets
from collections.abc import Mapping
from typing import Any

# Its own error reports, to its maker.
os.environ.setdefault("WANDB_ERROR_REPORTING", "false")

import wandb

from asyncrl.readers.trackers.tracker import Note, TrackedRun
from asyncrl.recipe import Tracker as Settings
from asyncrl.recipe.sections.alarms import DEFAULT_PROJECT


class WeightsAndBiases:
    def __init__(self, run: Any) -> None:
        self._run = run
        self.run_id = str(run.id)
        run.define_metric("step")
        run.define_metric("*", step_metric="step")

    def log(self, values: Mapping[str, float], *, step: int, time_seconds: float) -> None:
        self._run.log({**values, "step": step, "time_seconds": time_seconds})

    def note(self, note: Note, *, step: int, time_seconds: float) -> None:
        key = note.event if note.is_alarm else f"event/{note.event}"
        self._run.log({f"{key}/text": note.text, "step": step, "time_seconds": time_seconds})
        if note.is_alarm:
            self._run.alert(title=note.event, text=note.text, level="WARN")

    def supersede(self, step: int) -> None:
        self._run.log({"resumed_from": step, "step": step})

    def close(self) -> None:
        self._run.finish()


def open_tracker(settings: Settings, run: TrackedRun) -> WeightsAndBiases:
    # A run of this id may be at W&B already, or not yet where earlier starts were offline.
    continues = run.run_id is not None and settings.mode == "online"
    opened = wandb.init(
        project=settings.project or DEFAULT_PROJECT,
        entity=settings.entity,
        name=run.name,
        id=run.run_id or secrets.token_hex(4),
        tags=settings.tags,
        config=dict(run.recipe),
        mode=settings.mode,
        dir=str(run.folder),
        # wandb would look at its own process: output, program, git and the load of this machine.
        settings=wandb.Settings(
            console="off", disable_code=True, disable_git=True, save_code=False, x_disable_stats=True
        ),
        allow_val_change=True,
        resume="allow" if continues else None,
    )
    return WeightsAndBiases(opened)
