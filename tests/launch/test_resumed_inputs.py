"""What a resumed run works on is what it began with."""

import json
from pathlib import Path

import pytest
from fakes.newcomer import write_project
from fakes.records import make_queue

from asyncrl.launch.preflight import read_inputs
from asyncrl.recipe_file import load_recipe
from asyncrl.replay.starts import record_rendering


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
