"""`trackers` in a recipe: names or mappings, each with the settings that it has."""

from pathlib import Path
from typing import Any

import pytest
from fakes.trackers import write_recipe

from asyncrl.errors import InputError
from asyncrl.readers.trackers import tracker
from asyncrl.readers.trackers.tracker import check_trackers
from asyncrl.recipe.file import dump_recipe, load_recipe


def load(folder: Path, *trackers: Any) -> Any:
    write_recipe(folder, *trackers)
    return load_recipe(folder / "recipe.yaml")


def test_names_and_mappings_stand_in_one_list(tmp_path: Path) -> None:
    recipe = load(tmp_path, "tensorboard", {"name": "wandb", "project": "sums", "mode": "offline"})
    assert [(t.name, t.project, t.mode) for t in recipe.trackers] == [
        ("tensorboard", None, "online"),
        ("wandb", "sums", "offline"),
    ]


def test_a_resolved_recipe_is_read_back(tmp_path: Path) -> None:
    recipe = load(tmp_path, "tensorboard", {"name": "mlflow", "tags": ["cpu"]}, "./mine.py:open_mine")
    (tmp_path / "again.yaml").write_text(dump_recipe(recipe))
    again = load_recipe(tmp_path / "again.yaml")
    assert again.trackers == recipe.trackers
    assert again.trackers[2].name == f"{tmp_path}/mine.py:open_mine"


def test_trackers_are_set_on_the_command_line(tmp_path: Path) -> None:
    write_recipe(tmp_path)
    recipe = load_recipe(tmp_path / "recipe.yaml", ["trackers=[tensorboard, trackio]"])
    assert [tracker.name for tracker in recipe.trackers] == ["tensorboard", "trackio"]


@pytest.mark.parametrize(
    ("tracker", "said"),
    [
        ("tensorbored", r'trackers has "tensorbored", expected one of tensorboard, wandb, mlflow, trackio'),
        ({"name": "tensorboard", "tags": ["a"]}, 'trackers: "tensorboard" has no setting tags. It has none.'),
        (
            {"name": "mlflow", "entity": "team"},
            "has no setting entity. It has project, uri, tags. Remove entity.",
        ),
        ({"name": "wandb", "mode": "onlin"}, "trackers.0.mode is 'onlin'"),
        ({"name": "wandb", "projct": "x"}, "unknown key trackers.0.projct. Did you mean project?"),
        ({"project": "x"}, "trackers.0.name is missing"),
    ],
)
def test_what_a_tracker_does_not_have_is_refused(tmp_path: Path, tracker: Any, said: str) -> None:
    with pytest.raises(InputError) as refusal:
        load(tmp_path, tracker)
    assert said in str(refusal.value)


def test_a_tracker_is_named_once(tmp_path: Path) -> None:
    with pytest.raises(InputError, match='trackers names "wandb" twice. Keep one of them'):
        load(tmp_path, "wandb", {"name": "wandb", "project": "other"})


def test_a_missing_package_is_refused_with_the_way_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracker, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="trackers has wandb, but .* not installed.*make setup TRACKERS=1"):
        check_trackers(load(tmp_path, "wandb").trackers)


def test_a_function_that_is_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("open_other = None")
    with pytest.raises(InputError, match='has no "open_mine". It has: open_other'):
        check_trackers(load(tmp_path, "./mine.py:open_mine").trackers)
