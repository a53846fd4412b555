"""A step is reproduced in the layout that it was trained in."""

import json
from pathlib import Path

import pytest
from fakes.records import finish, make_queue, make_task

from asyncrl.errors import InputError
from asyncrl.journal.starts import record_start
from asyncrl.recipe.file import dump_recipe, parse_recipe
from asyncrl.run.reproduction import plan_reproduction


def begin_run(folder: Path, *trainers: dict[str, object]) -> None:
    """A step under each of `trainers`, and no checkpoint."""
    queue = make_queue(folder, batch=1)
    for step, trainer in enumerate(trainers):
        raw = {"name": "t", "model": {"path": "/m"}, "data": {"train": "/d", "heldout": "/h"}}
        recipe = dump_recipe(parse_recipe({**raw, "trainer": trainer}, source="test"))
        record_start(queue.journal, step, recipe)
        (folder / "recipe.yaml").write_text(recipe)
        queue.announce(step)
        finish(queue, queue.admit(make_task(step)), version=step)
        queue.take(step)
    queue.journal.close()
    rows = [json.dumps({"kind": "step", "step": step + 1}) for step in range(len(trainers))]
    (folder / "metrics.jsonl").write_text("\n".join(rows) + "\n")


@pytest.mark.parametrize(
    ("changed", "key"),
    [
        ({"num_processes": 2}, r"trainer\.num_processes \(1, 2\)"),
        ({"deterministic": True}, r"trainer\.deterministic \(False, True\)"),
        ({"parallel": {"distributed_optimizer": True}}, r"trainer\.parallel \("),
    ],
)
def test_steps_of_two_layouts_are_reproduced_by_no_single_start(
    tmp_path: Path, changed: dict[str, object], key: str
) -> None:
    begin_run(tmp_path, {}, changed)
    with pytest.raises(InputError, match=rf"trained with different values of {key}"):
        plan_reproduction(tmp_path, 2)
    assert plan_reproduction(tmp_path, 1).recipe.trainer.num_processes == 1


def test_other_changes_between_starts_do_not_matter(tmp_path: Path) -> None:
    begin_run(tmp_path, {}, {"num_steps": 99, "recompute": "full"})
    assert plan_reproduction(tmp_path, 2).recipe.trainer.num_steps == 99
