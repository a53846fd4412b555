"""Which runs a page shows."""

import shutil
from pathlib import Path

import pytest

from asyncrl.errors import InputError
from asyncrl.readers.page import runs as page_runs
from asyncrl.readers.page.runs import Runs


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
