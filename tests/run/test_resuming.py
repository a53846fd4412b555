"""What is left of a run: readable, or refused in one sentence before anything starts, also for a
reproduction; and which checkpoints stay (tests/trainer/checkpoints/test_checkpoint.py says what a complete
one is).
"""

import json
import os
import shutil
import sqlite3
from pathlib import Path

import pytest
import yaml
from fakes.records import finish, make_queue, make_task

from asyncrl.errors import InputError
from asyncrl.journal.queue_state import COMPACTED_BEFORE
from asyncrl.journal.starts import record_start
from asyncrl.readers.compare.recorded import open_runs
from asyncrl.recipe.file import dump_recipe, load_recipe, parse_recipe
from asyncrl.run.checkpoints import HeldOutAccuracies, to_forget, write_manifest
from asyncrl.run.folder import find_resumption
from asyncrl.run.metrics_file import MetricsWriter
from asyncrl.run.reproduction import plan_reproduction
from asyncrl.system.files import sha256_of

NUM_STEPS = 4


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A run of four steps with checkpoints of steps 2 and 4."""
    folder = tmp_path / "run"
    folder.mkdir()
    queue = make_queue(folder, batch=1)
    with MetricsWriter(folder / "metrics.jsonl") as metrics:
        for step in range(NUM_STEPS):
            queue.announce(step)
            finish(queue, queue.admit(make_task(step)), version=step)
            queue.take(step)
            metrics.step({"step": step + 1})
            if step % 2:
                write_checkpoint(folder, step + 1)
                queue.commit(step + 1, "")
    queue.journal.close()
    return folder


def write_checkpoint(run_folder: Path, version: int) -> None:
    folder = run_folder / "checkpoints" / f"step-{version}"
    folder.mkdir(parents=True)
    (folder / "weights").write_bytes(bytes(range(256)))
    write_manifest(folder, version, {"weights": sha256_of(folder / "weights")})


def damage(checkpoint: Path, how: str) -> None:
    weights, manifest = checkpoint / "weights", checkpoint / "checkpoint.json"
    if how == "delete":
        weights.unlink()
    elif how == "flip":
        weights.write_bytes(bytes(256))
    elif how == "manifest":
        manifest.write_text("[]")
    elif how == "other":
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "version": 3}))


def test_a_whole_run_continues_from_its_newest_checkpoint(run_folder: Path) -> None:
    found = find_resumption(run_folder)
    assert (found.version, found.remarks) == (4, [])


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("delete", "weights is missing"),
        ("flip", "weights is not what was written"),
        ("manifest", "its checkpoint.json cannot be read"),
        ("other", "its checkpoint.json says that it is the one of step 3"),
    ],
)
def test_a_damaged_checkpoint_is_named_with_the_reason_and_what_is_used(
    run_folder: Path, how: str, why: str
) -> None:
    damage(run_folder / "checkpoints" / "step-4", how)
    found = find_resumption(run_folder)
    assert found.version == 2
    (remark,) = found.remarks
    assert remark.startswith("the checkpoint of step 4 is damaged: ") and why in remark
    assert remark.endswith("Training goes back to the one of step 2.")


def test_without_a_whole_checkpoint_the_base_model_is_used_and_said(run_folder: Path) -> None:
    damage(run_folder / "checkpoints" / "step-4", "flip")
    damage(run_folder / "checkpoints" / "step-2", "delete")
    found = find_resumption(run_folder)
    assert found.version == 0
    assert ["base model" in remark for remark in found.remarks] == [True, True]


def test_a_checkpoint_that_is_gone_is_said(run_folder: Path) -> None:
    shutil.rmtree(run_folder / "checkpoints" / "step-4")
    found = find_resumption(run_folder)
    assert found.version == 2
    assert found.remarks == ["the checkpoint of step 4 is gone. Training goes back to step 2."]


def test_checkpoints_that_the_journal_no_longer_leads_on_from_are_refused(run_folder: Path) -> None:
    connection = sqlite3.connect(run_folder / "journal.sqlite")
    connection.execute("INSERT INTO meta VALUES (?, '3')", (COMPACTED_BEFORE,))
    connection.commit()
    connection.close()
    damage(run_folder / "checkpoints" / "step-4", "flip")
    with pytest.raises(
        InputError, match=r"tokens of steps 1 to 3, .* of step 2\. The one of step 4 is damaged"
    ):
        find_resumption(run_folder)


def break_journal(path: Path, how: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    if how == "garbage":
        path.write_bytes(os.urandom(8192))
    elif how == "text":
        path.write_text("hello\n" * 1000)
    elif how == "pages":
        content = bytearray(path.read_bytes())
        content[4096:-4096] = os.urandom(len(content) - 8192)
        path.write_bytes(content)
    elif how == "cut":
        path.write_bytes(path.read_bytes()[:5000])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "deleted":
        path.unlink()


@pytest.mark.parametrize("how", ["garbage", "text", "pages", "cut", "empty", "deleted"])
def test_a_journal_that_is_none_is_refused(run_folder: Path, how: str) -> None:
    break_journal(run_folder / "journal.sqlite", how)
    with pytest.raises(InputError, match=r"journal\.sqlite.*, or set run_folder \(or name\) to a new one"):
        find_resumption(run_folder)


@pytest.mark.parametrize(
    "line",
    [b"{oops", b"\xff\xfe\x00garbage", b"[1]", b"7", b'{"kind": "step"}', b'{"kind": "eval", "step": 1}'],
)
def test_a_line_that_is_no_row_of_metrics_is_refused_with_its_number(run_folder: Path, line: bytes) -> None:
    path = run_folder / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], line + b"\n", *lines[2:]]))
    with pytest.raises(InputError, match=r"metrics\.jsonl:3 is not a row of metrics"):
        find_resumption(run_folder)


@pytest.mark.parametrize("left", [[], ["journal.sqlite"], ["metrics.jsonl"]])
def test_a_run_that_was_killed_before_its_first_step_begins_again(tmp_path: Path, left: list[str]) -> None:
    for name in left:
        (tmp_path / name).touch()
    found = find_resumption(tmp_path)
    assert (found.version, found.remarks) == (0, [])


def begin_run(folder: Path, *trainers: dict[str, object]) -> None:
    """A step under each of `trainers`, and no checkpoint."""
    raw = {"name": "t", "model": {"path": "/m"}, "data": {"train": "/d", "heldout": "/h"}}
    parsed = (parse_recipe({**raw, "trainer": trainer}, source="test") for trainer in trainers)
    begin_with(folder, *map(dump_recipe, parsed))


def begin_with(folder: Path, *recipes: str) -> None:
    """A step under each of `recipes`, resolved, and no checkpoint."""
    queue = make_queue(folder, batch=1)
    for step, recipe in enumerate(recipes):
        record_start(queue.journal, step, recipe)
        (folder / "recipe.yaml").write_text(recipe)
        queue.announce(step)
        finish(queue, queue.admit(make_task(step)), version=step)
        queue.take(step)
    queue.journal.close()
    rows = [json.dumps({"kind": "step", "step": step + 1}) for step in range(len(recipes))]
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


def test_a_run_made_before_numbers_stood_with_their_terms_is_reproduced_evaluated_and_compared(
    tmp_path: Path,
) -> None:
    raw = yaml.safe_load((Path(__file__).parents[1] / "recipe" / "former_recipe.yaml").read_text())
    raw["algorithm"]["importance_cap"] = 3.0
    begin_with(tmp_path, yaml.safe_dump(raw))
    recipes = [plan_reproduction(tmp_path, 1).recipe, load_recipe(tmp_path / "recipe.yaml")]
    assert [recipe.algorithm.importance_weight.cap for recipe in recipes] == [3.0, 3.0]
    (run,) = open_runs([tmp_path])
    assert run.recipe["algorithm.importance_weight.cap"] == 3.0


def test_other_changes_between_starts_do_not_matter(tmp_path: Path) -> None:
    begin_run(tmp_path, {}, {"num_steps": 99, "recompute": "full"})
    assert plan_reproduction(tmp_path, 2).recipe.trainer.num_steps == 99


def heldout(folder: Path, accuracies: dict[int, float]) -> HeldOutAccuracies:
    known = HeldOutAccuracies(folder)
    known.add(accuracies)
    return known


def test_by_count_alone_the_newest_stay(tmp_path: Path) -> None:
    known = heldout(tmp_path, {2: 0.9})
    assert to_forget([2, 4, 6, 8], num_kept=2, heldout=known, evaluated_every=0) == [2, 4]
    assert to_forget([2], num_kept=2, heldout=known, evaluated_every=0) == []


def test_the_best_stays_in_addition_to_the_newest(tmp_path: Path) -> None:
    known = heldout(tmp_path, {2: 0.3, 4: 0.9, 6: 0.5, 8: 0.5})
    assert to_forget([2, 4, 6, 8], num_kept=1, heldout=known, evaluated_every=2) == [2, 6]


def test_of_equals_the_newer_is_the_best(tmp_path: Path) -> None:
    assert heldout(tmp_path, {2: 0.5, 4: 0.5}).best_first([2, 4]) == [4, 2]


def test_a_checkpoint_that_is_being_evaluated_stays_until_that_is_known(tmp_path: Path) -> None:
    # Every second version is evaluated; 4 and 6 are not known yet, 5 never will be.
    known = heldout(tmp_path, {2: 0.5})
    assert to_forget([2, 4, 5, 6, 7], num_kept=1, heldout=known, evaluated_every=2) == [5]
    known.add({4: 0.1})
    assert to_forget([2, 4, 5, 6, 7], num_kept=1, heldout=known, evaluated_every=2) == [4, 5]


def test_an_evaluation_that_got_lost_holds_its_checkpoint_only_until_a_later_one(tmp_path: Path) -> None:
    known = heldout(tmp_path, {2: 0.5, 6: 0.4})
    assert to_forget([2, 4, 6, 8], num_kept=1, heldout=known, evaluated_every=2) == [4, 6]


def test_accuracies_outlive_the_process(tmp_path: Path) -> None:
    heldout(tmp_path, {2: 0.25}).add({4: 0.75})
    again = HeldOutAccuracies(tmp_path)
    assert (again.accuracy(2), again.accuracy(4), again.accuracy(6)) == (0.25, 0.75, None)
    assert again.newest() == 4 and HeldOutAccuracies(tmp_path / "none").newest() == 0


def test_nothing_new_writes_nothing(tmp_path: Path) -> None:
    known = heldout(tmp_path, {2: 0.25})
    (tmp_path / "heldout.json").write_text(json.dumps({"2": 1.0}))
    known.add({2: 0.25})
    assert HeldOutAccuracies(tmp_path).accuracy(2) == 1.0
    known.add({3: 0.5})
    assert HeldOutAccuracies(tmp_path).accuracy(2) == pytest.approx(0.25)
