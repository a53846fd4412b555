"""`asyncrl report`: which files it writes, and where."""

import json
from pathlib import Path

import pytest
from fakes.finished_run import write_run

from asyncrl import cli
from asyncrl.readers.report.schema import CombinedReport, RunReport


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    found = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        found.append(write_run(tmp_path / name))
    return found


def written(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.name.startswith(("report", "curves"))}


def test_each_run_gets_its_report_and_all_of_them_one_more(
    runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["report", *map(str, runs), "--out", str(tmp_path / "all"), "--format", "json,markdown,latex"]
    assert cli.main(words) == 0
    for folder in (*runs, tmp_path / "all"):
        assert written(folder) == {"report.json", "report.md", "report.tex"}
    RunReport.model_validate_json((runs[0] / "report.json").read_text())
    both = CombinedReport.model_validate_json((tmp_path / "all" / "report.json").read_text())
    assert [run.run.folder for run in both.runs] == [str(run) for run in runs]
    # Two names for one seed: they are no group of seeds.
    assert both.groups == []
    markdown = (tmp_path / "all" / "report.md").read_text()
    assert markdown.count("| sums | 0 | finished | 50.0% [24.0, 76.0] | 80.0% [49.0, 94.0] |") == 2
    assert "2 runs" in capsys.readouterr().out


def test_the_page_of_several_runs_fetches_nothing(runs: list[Path], tmp_path: Path) -> None:
    assert cli.main(["report", *map(str, runs), "--out", str(tmp_path / "all"), "--format", "html"]) == 0
    page = (tmp_path / "all" / "report.html").read_text()
    assert "<svg" in page and "src=" not in page and "@import" not in page


def test_one_report_may_go_elsewhere_and_leave_the_run_as_it_is(runs: list[Path], tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in runs[0].iterdir() if "sqlite-" not in path.name}
    words = ["report", str(runs[0]), "--out", str(tmp_path / "new" / "place"), "--format", "json"]
    assert cli.main([*words, "--price-per-hour", "2", "--per", "gpu"]) == 0
    assert written(tmp_path / "new" / "place") == {"report.json"}
    after = {path: path.stat().st_mtime_ns for path in runs[0].iterdir() if "sqlite-" not in path.name}
    assert after == before


def test_a_folder_that_cannot_be_written_is_named(
    runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert cli.main(["report", str(runs[0]), "--out", str(tmp_path / "file"), "--format", "json"]) == 2
    assert f"{tmp_path / 'file'} cannot be written" in capsys.readouterr().err


def test_the_schema_names_its_version_and_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", "--schema"]) == 0
    schema = json.loads(capsys.readouterr().out)["one run"]
    assert schema["properties"]["schema_version"]["const"] == "1"
    assert schema["required"] == [name for name in RunReport.model_fields if name != "schema_version"]
