"""What a user sees who starts the trainer with something that cannot work: one sentence and exit code 2."""

from pathlib import Path

import pytest
from fakes.launch_trainer import finish_trainer, read_log, start_trainer
from fakes.models import write_model
from fakes.recipes import make_recipe

from asyncrl.recipe import Recipe
from asyncrl.recipe.file import dump_recipe

pytestmark = pytest.mark.usefixtures("forked_trainers")

NOBODY = "http://127.0.0.1:9"


def refusal(run: Path, recipe: Recipe | None) -> str:
    assert finish_trainer(start_trainer(run, NOBODY, recipe)) == [2]
    (line,) = read_log(run).splitlines()
    return line


def test_a_model_folder_that_is_none_is_refused(tmp_path: Path):
    line = refusal(tmp_path / "run", make_recipe(tmp_path / "nowhere"))
    assert line.startswith(f"model.path is {tmp_path / 'nowhere'}, which is not a folder")


def test_a_run_folder_without_recipe_is_refused(tmp_path: Path):
    assert "There is no recipe at" in refusal(tmp_path / "run", None)


def test_more_processes_in_the_recipe_than_were_started_are_refused(tmp_path: Path):
    folder, run = write_model(tmp_path / "model"), tmp_path / "run"
    run.mkdir()
    (run / "recipe.yaml").write_text(dump_recipe(make_recipe(folder, trainer={"num_processes": 2})))
    assert "WORLD_SIZE is 1 but trainer.num_processes is 2" in refusal(run, None)


def test_a_loss_of_ones_own_that_breaks_the_contract_is_refused(tmp_path: Path):
    (tmp_path / "own.py").write_text("def loss(inputs, algorithm): return inputs.current.sum()\n")
    recipe = make_recipe(write_model(tmp_path / "model"), algorithm={"surrogate": f"{tmp_path}/own.py:loss"})
    assert "own.py:loss gave () for 6 tokens; expected" in refusal(tmp_path / "run", recipe)
