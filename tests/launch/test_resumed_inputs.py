"""What a resumed run works on is what it began with."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes.newcomer import CONFIG, write_project
from fakes.records import make_queue, make_task

from asyncrl.errors import InputError
from asyncrl.journal.starts import record_model, record_rendering
from asyncrl.launch.preflight import read_inputs
from asyncrl.model.folder import model_digest
from asyncrl.recipe.file import load_recipe
from asyncrl.run.folder import RunFolder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    write_project(tmp_path)
    return tmp_path


def test_a_template_that_writes_the_time_makes_the_same_prompts_when_the_run_resumes(project: Path) -> None:
    (project / "model" / "chat_template.jinja").write_text("{{ strftime_now('%S%f') }}+1=")
    row = {"prompt": [{"role": "user", "content": "x"}], "answer": "2"}
    (project / "train.jsonl").write_text(json.dumps(row))
    recipe = load_recipe(project / "recipe.yaml")
    first, _ = read_inputs(recipe)
    again, _ = read_inputs(recipe)
    assert again.train_tasks[0].prompt != first.train_tasks[0].prompt
    recipe.folder().mkdir(parents=True)
    queue = make_queue(recipe.folder())
    record_rendering(queue.journal, first.rendered)
    # Admitted later than the prompts were rendered, as the servers start between.
    queue.announce(0)
    queue.admit(first.train_tasks[0])
    queue.journal.close()
    resumed, _ = read_inputs(recipe)
    assert resumed.train_tasks[0].prompt == first.train_tasks[0].prompt


def change_config(model: Path) -> None:
    (model / "config.json").write_text(json.dumps(CONFIG | {"rope_theta": 7.0}))


def change_a_weight(model: Path) -> None:
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")


@pytest.mark.parametrize("change", [change_config, change_a_weight])
@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_another_base_model_is_refused(
    project: Path, change: Callable[[Path], None], is_elsewhere: bool
) -> None:
    model = project / "model"
    begin_run(project)
    if is_elsewhere:
        (project / "elsewhere").mkdir()
        model = shutil.move(model, project / "elsewhere" / "model")
    recipe = load_recipe(project / "recipe.yaml", [f"model.path={model}"])
    # The same model resumes, also where it lies elsewhere now.
    assert RunFolder(recipe.folder()).check(recipe)
    change(model)
    with pytest.raises(InputError, match="a run that began with another base model than"):
        RunFolder(recipe.folder()).check(recipe)


def begin_run(project: Path) -> None:
    """The run folder of recipe.yaml with one unfinished group."""
    recipe = load_recipe(project / "recipe.yaml")
    with RunFolder(recipe.folder()) as folder:
        folder.open(recipe)
    queue = make_queue(recipe.folder())
    digest = model_digest(project / "model")
    assert digest is not None
    record_model(queue.journal, digest)
    queue.announce(0)
    queue.admit(make_task())
    queue.journal.close()
