"""MLflow: one run of an experiment, at a server or in a store, which later starts continue by its id.

MLflow keeps every point: steps that a resumed run trains again have a second point of a later time, which its
charts draw on top. The recipe becomes parameters, which MLflow keeps as the first start wrote them.
"""

import os
from collections.abc import Mapping
from pathlib import Path

# Reports on its use, to its maker.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

from mlflow.entities import Metric, Param, RunStatus, RunTag
from mlflow.tracking import MlflowClient

from asyncrl.readers.compare.recorded import flat
from asyncrl.readers.trackers.tracker import Note, TrackedRun
from asyncrl.recipe import Tracker as Settings
from asyncrl.recipe.sections.alarms import DEFAULT_PROJECT

MOST_METRICS, MOST_PARAMS = 1000, 100
"""Limits of one request."""
MOST_CHARACTERS = 5000
"""Limit of a tag or parameter."""
MOST_NOTES = 200
"""Limit of one start: each is a tag, and the page of a run lists all tags."""


class MLflow:
    def __init__(self, client: MlflowClient, run_id: str) -> None:
        self._client = client
        self.run_id = run_id
        self._num_notes = 0

    def log(self, values: Mapping[str, float], *, step: int, time_seconds: float) -> None:
        metrics = [Metric(name, value, int(1000 * time_seconds), step) for name, value in values.items()]
        for start in range(0, len(metrics), MOST_METRICS):
            self._client.log_batch(self.run_id, metrics=metrics[start : start + MOST_METRICS])

    def note(self, note: Note, *, step: int, time_seconds: float) -> None:
        self._num_notes += 1
        if self._num_notes <= MOST_NOTES or note.is_alarm:
            self._client.set_tag(self.run_id, f"step {step}: {note.event}", note.text[:MOST_CHARACTERS])

    def supersede(self, step: int) -> None:
        self._client.set_tag(self.run_id, "resumed_from", str(step))

    def close(self) -> None:
        if self._num_notes > MOST_NOTES:
            self._client.set_tag(self.run_id, "notes_left_out", str(self._num_notes - MOST_NOTES))
        self._client.set_terminated(self.run_id, RunStatus.to_string(RunStatus.FINISHED))


def open_tracker(settings: Settings, run: TrackedRun) -> MLflow:
    client = MlflowClient(find_uri(settings, run.folder))
    if run.run_id is not None:
        client.update_run(run.run_id, status=RunStatus.to_string(RunStatus.RUNNING))
        return MLflow(client, run.run_id)
    name = settings.project or DEFAULT_PROJECT
    experiment = client.get_experiment_by_name(name)
    experiment_id = client.create_experiment(name) if experiment is None else experiment.experiment_id
    tags = dict.fromkeys(settings.tags, "true")
    run_id = client.create_run(experiment_id, run_name=run.name, tags=tags).info.run_id
    params = [Param(key, str(value)[:MOST_CHARACTERS]) for key, value in flat(run.recipe).items()]
    for start in range(0, len(params), MOST_PARAMS):
        client.log_batch(run_id, params=params[start : start + MOST_PARAMS], tags=[RunTag("tool", "asyncrl")])
    return MLflow(client, run_id)


def find_uri(settings: Settings, folder: Path) -> str:
    """The recipe's server or store, the environment's, or one in `folder`."""
    own = f"sqlite:///{folder / 'mlflow.db'}"
    return settings.uri or os.environ.get("MLFLOW_TRACKING_URI") or own
