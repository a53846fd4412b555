"""Where `asyncrl eval` keeps answers, and what it keeps none of."""

from pathlib import Path

import pytest
from fakes.newcomer import write_project

from asyncrl.journal.kept_answers import AnswerStore
from asyncrl.launch.evaluated_models import EvaluatedModel, answers_file, keep_answers
from asyncrl.recipe.file import load_recipe
from asyncrl.tasks.verifier_cache import VerifierCache


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
