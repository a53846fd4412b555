"""trackio: a run in its database on this machine (TRACKIO_DIR), or where its variables say, such as a Space.

It continues runs by name, so the name has an ending of its own: two run folders may have one recipe. It keeps
every point: steps that a resumed run trains again have a second one.
"""

import secrets
from collections.abc import Mapping
from typing import Any

import trackio

from asyncrl.readers.trackers.tracker import Note, TrackedRun
from asyncrl.recipe import Tracker as Settings
from asyncrl.recipe.sections.alarms import DEFAULT_PROJECT


class Trackio:
    def __init__(self, run: Any) -> None:
        self._run = run
        self.run_id = str(run.name)

    def log(self, values: Mapping[str, float], *, step: int, time_seconds: float) -> None:
        self._run.log({**values, "time_seconds": time_seconds}, step=step)

    def note(self, note: Note, *, step: int, time_seconds: float) -> None:
        level = trackio.AlertLevel.WARN if note.is_alarm else trackio.AlertLevel.INFO
        self._run.alert(title=f"step {step}: {note.event}", text=note.text, level=level)

    def supersede(self, step: int) -> None:
        self._run.log({"resumed_from": step}, step=step)

    def close(self) -> None:
        self._run.finish()


def open_tracker(settings: Settings, run: TrackedRun) -> Trackio:
    opened = trackio.init(
        project=settings.project or DEFAULT_PROJECT,
        name=run.run_id or f"{run.name}-{secrets.token_hex(3)}",
        resume="never" if run.run_id is None else "allow",
        config={**run.recipe, "tags": settings.tags},
        embed=False,
        # It would look at the load of this machine.
        auto_log_gpu=False,
        auto_log_cpu=False,
    )
    return Trackio(opened)
