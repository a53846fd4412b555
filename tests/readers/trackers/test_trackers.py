"""What the real trackers have of a resumed run, read by their own readers. Nothing is sent anywhere."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fakes.trackers import needs, write_recipe

from asyncrl.readers.trackers.tracker import position_path, read_position
from asyncrl.run.metrics_file import MetricsWriter

NO_ANSWER = "verifier/outcomes_by_verifier/sevens.py-Sevens/no_answer"


def track(run: Path, label: str) -> str:
    """Sends what is new, in the process that a run starts; what the tracker calls the run."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "asyncrl.readers.trackers.process", label, str(run), "--once"],
        env={**os.environ, "TRACKIO_DIR": str(run / "trackers" / "trackio"), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    run_id = read_position(position_path(run, label)).run_id
    assert run_id is not None
    return run_id


def resumed_run(run: Path, tracker: Any) -> str:
    """A run of two starts, of which the second trains steps 2 and 3 again: loss 0.5 and then 0.25. Its id."""
    write_recipe(run, tracker)
    label = tracker if isinstance(tracker, str) else tracker["name"]
    with MetricsWriter(run / "metrics.jsonl", clock=lambda: 1700000000.0) as writer:
        writer.evaluation({"step": 0, "when": "before", "greedy_accuracy": 0.75})
        for step in (1, 2, 3):
            by_verifier = {"./sevens.py:Sevens": {"no_answer": step}}
            writer.step({"step": step, "loss": 0.5, "outcomes_by_verifier": by_verifier})
        writer.event("alarm", alarm="entropy", step=3, text="entropy is 0", value=0.0, limit=0.1)
        run_id = track(run, label)
        writer.resumed(1)
        for step in (2, 3):
            writer.step({"step": step, "loss": 0.25})
    assert track(run, label) == run_id, "the second start made a run of its own"
    return run_id


@needs("tensorboard")
def test_tensorboard_shows_each_step_once_with_its_last_value(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = tmp_path / "run"
    resumed_run(run, "tensorboard")
    events = EventAccumulator(str(run / "trackers" / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("train/loss")] == [(1, 0.5), (2, 0.25), (3, 0.25)]
    assert [(e.step, e.value, e.wall_time) for e in events.Scalars("eval/greedy_accuracy")] == [
        (0, 0.75, 1700000000.0)
    ]
    # Superseded, and not trained again with this verifier.
    assert [(e.step, e.value) for e in events.Scalars(NO_ANSWER)] == [(1, 1.0)]
    texts = {
        tag: events.Tensors(tag)[-1].tensor_proto.string_val[0].decode() for tag in events.Tags()["tensors"]
    }
    assert "name: sums" in texts["recipe/text"] and texts["event/resumed/text"] == "version 1"


@needs("wandb")
@pytest.mark.exhaustive
def test_wandb_offline_has_every_row_the_recipe_and_the_tags(tmp_path: Path) -> None:
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore

    run = tmp_path / "run"
    settings = {"name": "wandb", "mode": "offline", "project": "sums", "entity": "team", "tags": ["cpu"]}
    run_id = resumed_run(run, settings)
    rows: list[dict[str, Any]] = []
    runs = []
    # A folder per start, which `wandb sync` puts into one run.
    for file in sorted((run / "trackers" / "wandb").glob(f"offline-run-*/run-{run_id}.wandb")):
        store = DataStore()
        store.open_for_scan(str(file))
        while (data := store.scan_data()) is not None:
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.HasField("run"):
                runs.append(record.run)
            if record.HasField("history"):
                items = record.history.item
                rows.append({i.key or i.nested_key[0]: json.loads(i.value_json) for i in items})
        store.close()
    assert {(r.run_id, r.project, r.entity, r.display_name, *r.tags) for r in runs} == {
        (run_id, "sums", "team", "sums", "cpu")
    }
    config = {item.key: json.loads(item.value_json) for item in runs[-1].config.update}
    assert config["rollout"]["max_staleness"] == 2
    losses = [(row["step"], row["train/loss"]) for row in rows if "train/loss" in row]
    assert losses == [(1, 0.5), (2, 0.5), (3, 0.5), (2, 0.25), (3, 0.25)]
    assert [row["resumed_from"] for row in rows if "resumed_from" in row] == [1]
    assert [row["eval/greedy_accuracy"] for row in rows if "eval/greedy_accuracy" in row] == [0.75]
    assert [row["alarm/entropy/text"] for row in rows if "alarm/entropy/text" in row] == ["entropy is 0"]


@needs("mlflow")
@pytest.mark.slow
def test_mlflow_has_every_point_the_recipe_and_the_tags_in_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run = tmp_path / "run"
    run_id = resumed_run(run, {"name": "mlflow", "project": "sums", "tags": ["cpu"]})
    found = read_back(
        "from mlflow.tracking import MlflowClient\n"
        f"client = MlflowClient('sqlite:///{run}/trackers/mlflow.db')\n"
        f"run = client.get_run({run_id!r})\n"
        "told = {'name': run.info.run_name, 'status': run.info.status, 'params': run.data.params, "
        "'tags': run.data.tags, 'experiment': client.get_experiment(run.info.experiment_id).name}\n"
        f"points = client.get_metric_history({run_id!r}, 'train/loss')\n"
        "told['loss'] = [(m.step, m.value, m.timestamp) for m in points]\n"
        f"told['no_answer'] = len(client.get_metric_history({run_id!r}, {NO_ANSWER!r}))\n"
    )
    assert (found["name"], found["status"], found["experiment"]) == ("sums", "FINISHED", "sums")
    assert found["params"]["rollout.max_staleness"] == "2"
    assert found["tags"]["cpu"] == "true" and found["tags"]["step 3: alarm/entropy"] == "entropy is 0"
    points = [(step, value) for step, value, _ in found["loss"]]
    assert sorted(points) == [(1, 0.5), (2, 0.25), (2, 0.5), (3, 0.25), (3, 0.5)]
    assert {at for *_, at in found["loss"]} == {1700000000000} and found["no_answer"] == 3


@needs("trackio")
@pytest.mark.exhaustive
def test_trackio_has_every_point_in_one_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    name = resumed_run(run, {"name": "trackio", "project": "sums", "tags": ["cpu"]})
    assert name.startswith("sums-")
    found = read_back(
        f"import os; os.environ['TRACKIO_DIR'] = {str(run / 'trackers' / 'trackio')!r}\n"
        "from trackio.sqlite_storage import SQLiteStorage as Storage\n"
        f"told = {{'rows': Storage.get_logs('sums', {name!r})}}\n"
        f"told['config'] = Storage.get_run_config('sums', {name!r})\n"
        "told['alerts'] = [alert['title'] for alert in Storage.get_alerts('sums')]\n"
        "told['runs'] = Storage.get_runs('sums')\n"
    )
    losses = [(row["step"], row["train/loss"]) for row in found["rows"] if "train/loss" in row]
    assert sorted(losses) == [(1, 0.5), (2, 0.25), (2, 0.5), (3, 0.25), (3, 0.5)]
    assert found["config"]["rollout"]["max_staleness"] == 2 and found["config"]["tags"] == ["cpu"]
    assert "step 3: alarm/entropy" in found["alerts"] and len(found["runs"]) == 1


def read_back(code: str) -> dict[str, Any]:
    """`told`, as `code` sets it in a process of its own: these packages warn, and start threads."""
    code += "import json; print('told:' + json.dumps(told, default=str))"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=300, check=True
    )
    told: dict[str, Any] = json.loads(done.stdout.rpartition("told:")[2])
    return told
