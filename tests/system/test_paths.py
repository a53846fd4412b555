"""The nearest path to one that is not there; names in folders of runs and of the cache."""

import ast
import os
from pathlib import Path

import pytest

import asyncrl
from asyncrl.errors import InputError
from asyncrl.system import places
from asyncrl.system.paths import nearest_path, nearest_run
from asyncrl.system.places import cache_folder


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


ROOT = Path(asyncrl.__path__[0])
NAMES = (
    *(places.RECIPE, places.JOURNAL, places.METRICS, places.STATUS, places.CURVES),
    *(places.CONTROLLER_URL, places.TOKEN, places.CHECKPOINTS, places.PUBLICATIONS),
)
"""Those that are nothing else's: `evaluation` and `trackers` are sections of a recipe too."""


def test_names_in_a_run_folder_are_spelled_once() -> None:
    spelled = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for file in ROOT.rglob("*.py")
        if file != Path(places.__file__)
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value in NAMES
    ]
    assert spelled == []


def test_it_is_in_the_home_of_the_user_unless_it_is_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder("tasks") == tmp_path / "home" / ".cache" / "asyncrl" / "tasks"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert cache_folder("tasks") == tmp_path / "cache" / "asyncrl" / "tasks"


def test_a_user_without_a_home_is_told_which_variables_name_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container whose user id is in no /etc/passwd."""
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2**31)
    with pytest.raises(InputError, match="Set HOME, or XDG_CACHE_HOME"):
        cache_folder("tasks")
