"""`asyncrl reproduce REPORT.json`, without the processes of the run: what it checks, writes and says."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.newcomer import row, write_project
from fakes.records import make_queue

from asyncrl import cli
from asyncrl.controller.inputs import Inputs
from asyncrl.journal.ending import RunEnd, record_end
from asyncrl.journal.environments import StartRecord, code_digests, record_environment
from asyncrl.journal.starts import record_data, record_model
from asyncrl.launch import local
from asyncrl.model.folder import model_digest, read_shape
from asyncrl.observe.metrics.metrics_file import MetricsWriter
from asyncrl.recipe.file import load_recipe
from asyncrl.run.folder import RunFolder, data_digests
from asyncrl.system.environment import describe_environment


class Training:
    """In the place of a run's processes: writes what a short run leaves, with the accuracy it is told."""

    def __init__(self) -> None:
        self.accuracy = (0.80, 0.75, 0.85)
        self.package = "1.0"
        self.seeds: list[int] = []

    async def __call__(self, inputs: Inputs, folder: RunFolder, *_: object, **__: object) -> local.Outcome:
        recipe = inputs.recipe
        self.seeds.append(recipe.seed)
        model = Path(recipe.model.path)
        queue = make_queue(folder.path)
        digest = model_digest(model)
        assert digest is not None
        record_model(queue.journal, digest)
        record_data(queue.journal, data_digests(recipe))
        environment = describe_environment([])
        packages = environment.packages | {"made-up": self.package}
        record = StartRecord(
            environment=environment.model_copy(update={"packages": packages}),
            shape=read_shape(model),
            code=code_digests(recipe),
            lacking_energy=[],
        )
        record_environment(queue.journal, 1.0, 0, record)
        record_end(queue.journal, RunEnd(version=1, reason="num_steps"))
        queue.journal.close()
        mean, low, high = self.accuracy
        with MetricsWriter(folder.metrics) as metrics:
            metrics.step({"step": 1, "step_seconds": 1.0, "response_tokens_mean": 5.0})
            shares = {"greedy_accuracy": mean, "greedy_low": low, "greedy_high": high, "num_tasks": 100}
            metrics.evaluation({"step": 1, "when": "after", **shares, "response_tokens_mean": 5.0})
        return "finished"


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch) -> Training:
    training = Training()
    monkeypatch.setattr(local, "train", training)
    return training


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A folder, and what belongs into it: a recipe, its finished run with seed 3, and the report."""
    folder = tmp_path_factory.mktemp("trained")
    training = Training()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "train", training)
        patch.chdir(folder)
        write_project(folder)
        assert cli.main(["train", "recipe.yaml", "seed=3", "trainer.num_steps=1", "memory_gib=64"]) == 0
    assert training.seeds == [3]
    return folder, folder.rename(folder.with_name("kept"))


@pytest.fixture
def project(
    trained: tuple[Path, Path], training: Training, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """As the run has left it."""
    folder, kept = trained
    shutil.copytree(kept, folder, symlinks=True)
    monkeypatch.chdir(folder)
    yield folder
    shutil.rmtree(folder)


def reproduce(*words: str) -> int:
    return cli.main(["reproduce", "runs/mine/report.json", *words])


def test_a_run_is_trained_again_with_its_seed_in_a_folder_of_its_own(
    project: Path, training: Training, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert reproduce() == 0
    said = capsys.readouterr().out
    assert training.seeds == [3]
    again = load_recipe(project / "runs" / "mine-reproduced" / "recipe.yaml")
    first = load_recipe(project / "runs" / "mine" / "recipe.yaml")
    assert again == first.model_copy(update={"run_folder": again.run_folder})
    assert "last: greedy 80.0% [75.0, 85.0] 80.0% [75.0, 85.0] +0.0 [-7.1, +7.1]" in " ".join(said.split())
    assert "not bit-identical" in said and "SAME WITHIN THE INTERVAL" in said


def test_a_clear_difference_is_said_and_is_the_exit_code(
    project: Path, training: Training, capsys: pytest.CaptureFixture[str]
) -> None:
    training.accuracy = (0.70, 0.65, 0.75)
    assert reproduce() == 1
    # -10 points; 5 points each side of both: sqrt(50) = 7.07.
    said = " ".join(capsys.readouterr().out.split())
    assert "-10.0 [-17.1, -2.9]" in said and "NOT THE SAME" in said


def test_a_check_says_what_differs_and_writes_nothing(
    project: Path, training: Training, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reproduce("--check") == 0
    said = capsys.readouterr().out
    assert "package made-up: recorded 1.0, here none" in said and "Nothing was trained" in said
    assert training.seeds == [] and not (project / "runs" / "mine-reproduced").exists()


def test_a_model_that_is_gone_is_named_with_its_digest_and_may_be_elsewhere(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    digest = json.loads((project / "runs/mine/report.json").read_text())["model"]["digest"]
    (project / "model").rename(project / "moved")
    assert reproduce("--check") == 2
    said = capsys.readouterr().err
    assert str(project / "model") in said and digest in said and "model.path=PATH" in said
    assert reproduce("--check", "model.path=moved") == 0


def test_another_model_at_its_place_is_refused(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = json.loads((project / "model" / "config.json").read_text())
    (project / "model" / "config.json").write_text(json.dumps(config | {"rope_theta": 5e5}))
    assert reproduce("--check") == 2
    assert "has the digest" in capsys.readouterr().err


def test_changed_data_is_refused_wherever_it_lies(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "other.jsonl").write_text(row("9+1=", "10") + "\n")
    assert reproduce("--check", "data.train=other.jsonl") == 2
    assert "data.train has the digest" in capsys.readouterr().err
    (project / "train.jsonl").rename(project / "kept.jsonl")
    assert reproduce("--check") == 2
    assert "Expected digests: data.train" in capsys.readouterr().err
    assert reproduce("--check", "data.train=kept.jsonl") == 0


def test_a_report_of_several_runs_is_no_report_of_one(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["report", "runs/mine", "runs/mine", "--out", "both"]) == 0
    assert cli.main(["reproduce", "both/report.json"]) == 2
    assert "It is of several runs" in capsys.readouterr().err


def test_a_report_of_another_version_is_refused(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = project / "runs" / "mine" / "report.json"
    found: dict[str, Any] = json.loads(path.read_text()) | {"schema_version": "0"}
    path.write_text(json.dumps(found))
    assert reproduce("--check") == 2
    assert "schema_version: Input should be '1'" in capsys.readouterr().err
