"""`asyncrl track`: what trackers lack of a run is sent afterwards."""

from pathlib import Path

import pytest
from fakes.commands import Command
from fakes.trackers import kept, own, write_recipe

from asyncrl.commands import main as cli
from asyncrl.readers.trackers import tracker
from asyncrl.run.folder import read_run_recipe
from asyncrl.run.metrics_file import MetricsWriter


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run = tmp_path / "run"
    write_recipe(run)
    with MetricsWriter(run / "metrics.jsonl") as writer:
        writer.step({"step": 1, "loss": 0.5})
    return run


def test_a_run_is_sent_to_a_tracker_that_it_did_not_have_and_each_row_once(
    run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    name = own("keep")["name"]
    assert cli.main(["track", str(run), name]) == 0
    assert [row["step"] for row in kept(run) if "log" in row] == [1]
    assert "trackers.py-keep: 1 sent, 0 left" in capfd.readouterr().out
    # The recipe has it from then on.
    assert [settings.name for settings in read_run_recipe(run).trackers] == [name]
    assert cli.main(["track", str(run)]) == 0
    assert [row["step"] for row in kept(run) if "log" in row] == [1]


def test_a_tracker_that_fails_is_an_exit_code(run: Path, whole_command: Command) -> None:
    write_recipe(run, own("failing", at=1, how="raises"))
    said = whole_command("track", run, code=1)
    assert "0 sent, 1 left (exit code 3)" in said.out and "RuntimeError: the tracker's server" in said.err


def test_a_run_without_trackers_says_how_to_name_one(run: Path, whole_command: Command) -> None:
    assert f"Name some: asyncrl track {run} tensorboard" in whole_command("track", run, code=2).err


@pytest.mark.parametrize("command", ["check", "train"])
def test_a_missing_tracker_is_refused_before_anything_else(
    tmp_path: Path, whole_command: Command, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    # Its model is not there either, which would be the next error.
    write_recipe(tmp_path, "tensorboard")
    monkeypatch.setattr(tracker, "find_spec", lambda name: None)
    said = whole_command(command, tmp_path / "recipe.yaml", code=2).err
    assert "trackers has tensorboard, but the package" in said and "`make setup TRACKERS=1`" in said
