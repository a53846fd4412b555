"""Which models an evaluation puts side by side, the sentences for those that are not there,
and where answers are kept."""

from pathlib import Path

import pytest
from fakes.model_folder import write_tokenizer
from fakes.newcomer import write_project
from fakes.recipes import make_recipe

from asyncrl.errors import InputError
from asyncrl.journal.kept_answers import AnswerStore
from asyncrl.launch.evaluated_models import (
    EvaluatedModel,
    answers_file,
    find_models,
    keep_answers,
    usable_versions,
)
from asyncrl.recipe import Recipe
from asyncrl.recipe.file import load_recipe
from asyncrl.run.checkpoints import HeldOutAccuracies, write_manifest
from asyncrl.run.status import starting, write_status
from asyncrl.tasks.verifier_cache import VerifierCache


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    """Its run has exported steps 2 and 4; 6 was saved without an export."""
    write_tokenizer(tmp_path / "model")
    made = make_recipe(tmp_path / "model").model_copy(update={"run_folder": str(tmp_path / "run")})
    for step in (2, 4):
        write_tokenizer(tmp_path / "run" / "checkpoints" / f"step-{step}" / "hf")
    (tmp_path / "run" / "checkpoints" / "step-6").mkdir()
    return made


def checkpoint(recipe: Recipe, step: int) -> Path:
    return recipe.folder() / "checkpoints" / f"step-{step}" / "hf"


def test_base_best_last_and_steps_in_the_order_asked_for(recipe: Recipe) -> None:
    HeldOutAccuracies(recipe.folder() / "checkpoints").add({2: 0.5, 4: 0.25, 6: 0.75})
    models = find_models(recipe, ["base", "best", "last"], [])
    assert [(model.label, model.folder) for model in models] == [
        ("base", Path(recipe.model.path)),
        ("step 2 (best)", checkpoint(recipe, 2)),
        ("step 4 (last)", checkpoint(recipe, 4)),
    ]
    assert [model.label for model in find_models(recipe, ["4", "last", "2"], [])] == [
        "step 4 (last)",
        "step 2",
    ]


def test_a_folder_stands_beside_the_others(recipe: Recipe, tmp_path: Path) -> None:
    other = write_tokenizer(tmp_path / "other")
    (other / "config.json").write_text("{}")
    assert [model.folder for model in find_models(recipe, ["base"], [other])][1] == other


def test_a_model_with_another_tokenizer_is_refused(recipe: Recipe) -> None:
    file = checkpoint(recipe, 4) / "tokenizer.json"
    file.write_text(file.read_text() + " ")
    with pytest.raises(InputError, match=r"step 4 .* has another tokenizer.json than base .* one by one"):
        find_models(recipe, ["base", "4"], [])


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ("newest", r'--at has "newest", expected base, best, last, or a step: 2, 4\.'),
        ("3", r"--at has 3, but .*checkpoints holds the steps 2, 4\."),
        ("6", r"--at has 6, but .*checkpoints holds the steps 2, 4\."),
        ("best", r"--at has best, but no held-out accuracy is known .* Use last or a step"),
    ],
)
def test_a_place_without_a_model_is_one_sentence(recipe: Recipe, place: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        find_models(recipe, [place], [])


def test_a_checkpoint_that_is_damaged_or_whose_run_trains_is_one_sentence(recipe: Recipe) -> None:
    run = recipe.folder()
    write_manifest(run / "checkpoints/step-6", 6, {"common.pt": "0" * 64})
    assert usable_versions(run) == [2, 4, 6]
    for place in ("6", "last"):
        with pytest.raises(InputError, match=r"step 6 in .* is damaged: common.pt is missing\. Name another"):
            find_models(recipe, [place], [])
    write_status(run, starting(step=6, total_steps=8))
    with pytest.raises(InputError, match=r"holds the steps 2, 4, and its run still trains: others can be"):
        find_models(recipe, ["6"], [])
    assert [model.label for model in find_models(recipe, ["last"], [])] == ["step 4 (last)"]


def test_a_run_without_checkpoints_and_a_folder_that_is_missing_are_one_sentence_each(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "model")
    recipe = make_recipe(tmp_path / "model").model_copy(update={"run_folder": str(tmp_path / "run")})
    with pytest.raises(InputError, match="holds no checkpoint yet"):
        find_models(recipe, ["last"], [])
    with pytest.raises(InputError, match="--checkpoint is .*nowhere, which does not exist"):
        find_models(recipe, [], [tmp_path / "nowhere"])
    with pytest.raises(InputError, match="--checkpoint is .*, which has no config.json"):
        find_models(recipe, [], [tmp_path / "model"])


def test_answers_of_a_run_are_in_its_folder_and_others_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_project(tmp_path)
    recipe = load_recipe(tmp_path / "recipe.yaml")
    assert answers_file(recipe) == tmp_path / "cache" / "asyncrl" / "evaluations" / "answers.sqlite"
    folder = recipe.folder()
    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text("name: mine\n")
    assert answers_file(recipe) == folder / "answers.sqlite"


def test_answers_of_servers_whose_weights_are_not_here_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_project(tmp_path)
    recipe = load_recipe(tmp_path / "recipe.yaml", ["serving.servers=[http://127.0.0.1:1]"])
    with AnswerStore(tmp_path / "answers.sqlite") as store:
        model = EvaluatedModel("base", tmp_path / "model")
        assert keep_answers(recipe, model, VerifierCache(tmp_path), store, regrades=False) is None
