"""What a user sees who starts the trainer with something that cannot work: one sentence and exit code 2."""

import subprocess
import sys
from pathlib import Path

from fakes.launch_trainer import finish_trainer, read_log, start_trainer
from fakes.models import write_model
from fakes.recipes import make_recipe

from asyncrl.errors import DiskError
from asyncrl.recipe import Recipe
from asyncrl.recipe.file import dump_recipe

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


def test_a_full_disk_is_told_by_the_exit_code_also_where_the_log_takes_nothing():
    code = (
        "import contextlib, sys\n"
        "from asyncrl.errors import DiskError\n"
        "from asyncrl.trainer.bootstrap import end_on_full_disk\n"
        "with contextlib.suppress(OSError):\n"
        "    print('a line that finds no room', file=sys.stderr)\n"
        "end_on_full_disk(DiskError('no room'))\n"
    )
    with Path("/dev/full").open("w") as full:
        assert subprocess.run([sys.executable, "-c", code], stderr=full).returncode == DiskError.EXIT_CODE
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert said.stderr.splitlines() == ["a line that finds no room", "DiskError: no room"]
