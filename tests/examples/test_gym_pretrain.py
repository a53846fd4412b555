"""A base model for a gym: made from the gym's own questions, and fit for the recipe that names it."""

from pathlib import Path

import pytest
from fakes.gym import NEEDS_GYM
from fakes.refusals import without_page

import asyncrl.data.gym
from asyncrl.commands import main as cli
from asyncrl.errors import InputError
from asyncrl.launch.prepare import prepare_and_fetch
from asyncrl.recipe import Recipe
from asyncrl.recipe.file import load_recipe

RECIPE = Path(__file__).parents[2] / "recipes" / "r1_zero_reasoning_cpu.yaml"


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The recipe with little data, everything in a folder of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    places = {"run_folder": "run", "prepare.folder": "made", "model.path": "made/model"}
    return [*(f"{key}={tmp_path / name}" for key, name in places.items()), "data.train.size=40"]


@NEEDS_GYM
def test_the_recipe_is_accepted_before_its_model_is_made(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["check", str(RECIPE), *words]) == 0
    assert "is not made yet: train makes it first" in capsys.readouterr().out


@NEEDS_GYM
@pytest.mark.exhaustive
def test_the_recipe_is_accepted_with_the_model_that_it_makes(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words += ["prepare.options.num_examples=16", "prepare.options.examples_per_batch=8"]
    recipe = load_recipe(RECIPE, words)
    prepare_and_fetch(recipe, RECIPE, words, lambda recipe: recipe)
    assert cli.main(["check", str(RECIPE), *words]) == 0
    said = capsys.readouterr().out
    assert "Qwen3ForCausalLM, 0.6 M parameters" in said
    assert "40 training tasks, 256 held-out tasks, every answer parsed by its verifier" in said


def test_without_the_package_the_recipe_is_refused_before_anything_is_made(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def missing() -> str:
        raise ValueError("reasoning-gym is not installed. Run `make setup GYM=1`.")

    def fetch(recipe: Recipe) -> Recipe:
        raise AssertionError("something was fetched")

    monkeypatch.setattr(asyncrl.data.gym, "installed_version", missing)
    refused = 'data.train has the gym "chain_sum", but reasoning-gym is not installed.'
    assert cli.main(["check", str(RECIPE), *words]) == 2
    assert without_page(capsys.readouterr().err) == f"{refused} Run `make setup GYM=1`."
    with pytest.raises(InputError, match="make setup GYM=1"):
        prepare_and_fetch(load_recipe(RECIPE, words), RECIPE, words, fetch)
    assert not (tmp_path / "made").exists()


def test_an_unknown_option_is_refused_with_those_there_are(tmp_path: Path) -> None:
    # Loads torch and transformers.
    from asyncrl.examples.gym_pretrain import prepare

    with pytest.raises(InputError, match=r"prepare.options.nois: .*Options: .*worked, .*noise"):
        prepare(tmp_path, lambda *progress: None, nois=0.1)
