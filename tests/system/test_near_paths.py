"""The nearest path to one that is not there."""

from pathlib import Path

import pytest

from asyncrl.system.paths import nearest_path, nearest_run


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("data/train.jsonl", "data/heldout.jsonl", "runs/my_run/recipe.yaml", "runs/empty/log"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "given", ["data/trian.jsonl", "dta/train.jsonl", "data/Train.json", "dat/tran.jsonl"]
)
def test_each_part_may_be_misspelt(given: str) -> None:
    assert nearest_path(given) == " Did you mean data/train.jsonl?"


def test_an_absolute_path_stays_absolute(here: Path) -> None:
    assert nearest_path(here / "data" / "trian.jsonl") == f" Did you mean {here}/data/train.jsonl?"


@pytest.mark.parametrize("given", ["data/x.jsonl", "elsewhere/train.jsonl", "data/train.jsonl", ""])
def test_a_path_like_none_beside_it_and_one_that_is_there_have_none(given: str) -> None:
    assert nearest_path(given) == ""


@pytest.mark.parametrize("given", ["runs/my_rn", "my_run", "my_rn", "rusn/my_run"])
def test_a_run_is_found_in_runs_too(given: str) -> None:
    assert nearest_run(given) == " Did you mean runs/my_run?"


def test_a_folder_without_a_recipe_is_no_run() -> None:
    assert nearest_run("runs/emty") == ""


def test_a_name_that_fits_but_is_not_there_is_replaced() -> None:
    assert nearest_path("data/trian.jsonl", lambda path: path.suffix == ".jsonl").endswith("train.jsonl?")
