"""`asyncrl report`: which files it writes, and where."""

import json
import struct
from pathlib import Path

import pytest
from fakes.commands import Command
from fakes.finished_run import write_run

from asyncrl.commands import main as cli
from asyncrl.readers.report.schema import RunReport


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    found = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        found.append(write_run(tmp_path / name))
    return found


def written(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.name.startswith(("report", "curves"))}


def test_each_run_gets_its_report(runs: list[Path], command: Command) -> None:
    said = command("report", *runs, "--format", "json,markdown").out
    for folder in runs:
        assert written(folder) == {"report.json", "report.md"}
    RunReport.model_validate_json((runs[0] / "report.json").read_text())
    row = "| greedy accuracy | 50.0% [24.0, 76.0] | 80.0% [49.0, 94.0] |"
    assert row in (runs[0] / "report.md").read_text()
    assert said.count("finished, 10 steps") == 2


def test_several_runs_have_one_page_in_one_folder(runs: list[Path], tmp_path: Path, command: Command) -> None:
    words = ["report", *map(str, runs), "--out", str(tmp_path / "all")]
    command(*words, "--format", "html,markdown")
    assert written(tmp_path / "all") == {"report.html", "report.md"}
    assert all(not written(folder) for folder in runs)
    assert "a/run and b/run" in (tmp_path / "all" / "report.html").read_text()
    assert "asyncrl compare --json" in command(*words, "--format", "json", code=2).err


def test_a_picture_to_share_is_written_alone_and_of_one_run(
    runs: list[Path], tmp_path: Path, command: Command
) -> None:
    file = tmp_path / "card.png"
    command("report", runs[0], "--png", file)
    # Width and height in the header of a PNG.
    assert struct.unpack(">II", file.read_bytes()[16:24]) == (1200, 630)
    assert not written(runs[0])
    said = command("report", *runs, "--png", file, code=2).err
    assert "the picture of one run, and 2 are named" in said
    said = command("report", runs[0], "--png", tmp_path / "no" / "x.png", code=2).err
    assert "x.png cannot be written" in said


def test_one_report_may_go_elsewhere_and_leave_the_run_as_it_is(runs: list[Path], tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in runs[0].iterdir() if "sqlite-" not in path.name}
    words = ["report", str(runs[0]), "--out", str(tmp_path / "new" / "place"), "--format", "json"]
    assert cli.main(words) == 0
    assert written(tmp_path / "new" / "place") == {"report.json"}
    after = {path: path.stat().st_mtime_ns for path in runs[0].iterdir() if "sqlite-" not in path.name}
    assert after == before


def test_a_folder_that_cannot_be_written_is_named(runs: list[Path], tmp_path: Path, command: Command) -> None:
    (tmp_path / "file").write_text("")
    said = command("report", runs[0], "--out", tmp_path / "file", "--format", "json", code=2).err
    assert f"{tmp_path / 'file'} cannot be written" in said


def test_the_schema_names_its_version_and_every_field(command: Command) -> None:
    schema = json.loads(command("report", "--schema").out)
    assert schema["properties"]["schema_version"]["const"] == "5"
    assert schema["required"] == [name for name in RunReport.model_fields if name != "schema_version"]
