"""The runs of the page: those that are there, kept and read again, and the line of each in the overview."""

import shutil
from pathlib import Path

import pytest
from fakes.finished_run import write_run
from fakes.statuses import make_status

from asyncrl.errors import InputError
from asyncrl.readers.page import runs as page_runs
from asyncrl.readers.page.overview import MOST_POINTS, read_head, read_line
from asyncrl.readers.page.runs import Run, Runs
from asyncrl.run.metrics_file import MetricsWriter
from asyncrl.run.status import write_status


def make_runs(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "recipe.yaml").write_text(f"name: {name}")
    return folder


def test_a_folder_of_runs_shows_each_of_them_and_nothing_else(tmp_path: Path) -> None:
    make_runs(tmp_path / "runs", "b", "a")
    (tmp_path / "runs" / "notes").mkdir()
    assert [*Runs([tmp_path / "runs"]).folders()] == ["a", "b"]


def test_runs_appear_and_vanish_while_the_page_is_open(tmp_path: Path) -> None:
    runs = Runs([make_runs(tmp_path, "a", "b")])
    assert runs.get("b") is not None
    make_runs(tmp_path, "c")
    shutil.rmtree(tmp_path / "b")
    assert [*runs.folders()] == ["a", "c"]
    assert runs.get("b") is None


def test_runs_of_one_name_are_numbered_and_a_run_named_twice_shows_once(tmp_path: Path) -> None:
    one, two = (make_runs(tmp_path / folder, "sums") for folder in ("one", "two"))
    runs = Runs([one, two, one / "sums"])
    assert runs.folders() == {"sums": one / "sums", "sums~2": two / "sums"}


def test_what_was_read_of_a_run_is_kept_until_too_many_are_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_runs, "MOST_OPEN", 2)
    runs = Runs([make_runs(tmp_path, "a", "b", "c")])
    first = runs.get("a")
    assert runs.get("a") is first
    runs.get("b")
    runs.get("c")
    assert runs.get("a") is not first


def test_a_run_that_starts_over_is_read_again(tmp_path: Path) -> None:
    runs = Runs([make_runs(tmp_path, "a")])
    first = runs.get("a")
    (tmp_path / "a" / "recipe.new").write_text("name: other")
    (tmp_path / "a" / "recipe.new").replace(tmp_path / "a" / "recipe.yaml")
    second = runs.get("a")
    assert second is not None and second is not first and second.recipe == {"name": "other"}


def test_a_run_is_found_by_its_name_alone(tmp_path: Path) -> None:
    runs = Runs([make_runs(tmp_path / "runs", "a")])
    make_runs(tmp_path, "secret")
    assert runs.get("../secret") is None


@pytest.mark.parametrize("path", ["nothing", "empty"])
def test_a_path_without_runs_is_refused(tmp_path: Path, path: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="not a run folder"):
        Runs([tmp_path / path])


def test_a_run_that_writes_its_status_is_shown_with_its_state_and_steps(run_folder: Path) -> None:
    write_status(run_folder, make_status(step=12))
    line = read_line(Run("sums", run_folder))
    assert (line["state"], line["step"], line["total_steps"]) == ("training", 12, 40)


def test_a_line_holds_accuracies_the_last_reward_and_the_last_alarm(run_folder: Path) -> None:
    with MetricsWriter(run_folder / "metrics.jsonl") as writer:
        for step, text in ((3, "Entropy fell."), (8, "Lengths exploded.")):
            writer.event("alarm", alarm="x", step=step, text=text, value=1.0, limit=0.5, is_first=True)
    line = read_line(Run("sums", run_folder))
    assert read_head(Run("sums", run_folder)) == line and (line["step"], line["total_steps"]) == (10, 10)
    assert line["accuracies"] == [[0, 0.5], [10, 0.8]]
    assert (line["low"], line["high"]) == (0.49, 0.94)
    assert line["reward"] == 0.9
    assert (line["alarm"], line["alarm_step"]) == ("Lengths exploded.", 8)


def test_steps_that_a_resumed_run_trains_again_are_named_until_they_are(run_folder: Path) -> None:
    run = Run("sums", run_folder)
    assert read_line(run)["again"] is None
    with MetricsWriter(run_folder / "metrics.jsonl") as writer:
        writer.resumed(4)
        line = read_line(run)
        assert line["again"] == (5, 10)
        for step in range(5, 11):
            writer.step({"step": step})
        assert read_line(run)["again"] is None
        # Nothing is lost where the newest step has its checkpoint.
        writer.resumed(10)
    assert read_line(run)["again"] is None


def test_an_alarm_that_has_ended_says_so(run_folder: Path) -> None:
    with MetricsWriter(run_folder / "metrics.jsonl") as writer:
        writer.event("alarm", alarm="x", step=3, text="Entropy is back.", is_on=False)
    assert read_line(Run("sums", run_folder))["alarm"] == "Entropy is back. It is over."


def test_a_sparkline_of_many_evaluations_keeps_the_last_one(run_folder: Path) -> None:
    with MetricsWriter(run_folder / "metrics.jsonl") as writer:
        for step in range(11, 500):
            writer.evaluation({"step": step, "when": "during", "greedy_accuracy": step / 500})
    accuracies = read_line(Run("sums", run_folder))["accuracies"]
    assert len(accuracies) <= MOST_POINTS
    assert accuracies[-1] == [499, 499 / 500]


def test_a_run_that_cannot_be_read_says_why_in_its_line(run_folder: Path) -> None:
    (run_folder / "metrics.jsonl").write_text("no row\n")
    line = read_line(Run("sums", run_folder))
    assert line["problem"] is not None and "is not a row of metrics" in line["problem"]


def test_a_run_that_only_begins_has_a_line_and_a_head(tmp_path: Path) -> None:
    run_folder = write_run(tmp_path)
    (run_folder / "metrics.jsonl").unlink()
    (run_folder / "journal.sqlite").unlink()
    assert read_line(Run("sums", run_folder))["problem"] is None
    assert read_head(Run("sums", run_folder))["step"] is None
