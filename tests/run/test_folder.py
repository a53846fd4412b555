"""The run folder: one launcher at a time, resumed only by the same recipe."""

import json
import shutil
from datetime import datetime
from pathlib import Path

import pytest
from fakes.records import make_queue, make_task

from asyncrl.errors import InputError
from asyncrl.journal.starts import UNSAMPLED, RunEnd, record_end, record_rendering, record_start, set_fact
from asyncrl.recipe import Recipe
from asyncrl.recipe.file import load_recipe, parse_recipe, with_moved_files
from asyncrl.run.folder import RunFolder, first_difference, read_run_recipe


def make_recipe(**changes: object) -> Recipe:
    raw = {"name": "t", "model": {"path": "/m"}, "data": {"train": "/d", "heldout": "/h"}, **changes}
    return parse_recipe(raw, source="test")


def test_a_new_folder_holds_the_resolved_recipe(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run") as folder:
        assert not folder.check(make_recipe())
        folder.open(make_recipe())
    # Its own place is wherever it lies; "./file.py:Name" in rows would be looked for there.
    here = {"run_folder": str(tmp_path / "run"), "verifying": {"folder": str(tmp_path / "run")}}
    assert read_run_recipe(tmp_path / "run") == make_recipe(**here)


def test_two_hub_ids_of_one_name_are_two_whatever_the_current_folder_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "b" / "model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    there, now = (make_recipe(model={"path": path}) for path in ("a/model", "b/model"))
    # A folder of that name, as seen from the current one, has nothing to do with it.
    assert first_difference(there, now) == ("model.path", "a/model", "b/model")
    assert with_moved_files(there, now) == there
    there, now = (make_recipe(data={"train": path, "heldout": "/h"}) for path in ("a/model", "b/model"))
    assert first_difference(there, now) == ("data.train", "a/model", "b/model")


def test_checking_writes_nothing(tmp_path: Path) -> None:
    RunFolder(tmp_path / "run").check(make_recipe())
    assert list(tmp_path.iterdir()) == []


def test_a_moved_run_is_its_own_folder_and_resumes_with_data_that_moved_along(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    (old / "recipe.yaml").write_text("name: t\nmodel: {path: m}\ndata: {train: d, heldout: h}\n")
    (old / "m").mkdir()
    for name in "dh":
        (old / name).write_text("")
    with RunFolder(old / "runs" / "t") as folder:
        folder.open(load_recipe(old / "recipe.yaml"))
    begin(old / "runs" / "t")
    old.rename(new)
    run = new / "runs" / "t"
    assert read_run_recipe(run).folder() == run
    # The data moved along, and is where it was as seen from the run.
    assert read_run_recipe(run).data.train == str(new / "d")
    assert RunFolder(run).check(load_recipe(new / "recipe.yaml"))
    (new / "other").write_text("")
    with pytest.raises(InputError, match="data.train"):
        RunFolder(run).check(load_recipe(new / "recipe.yaml", [f"data.train={new / 'other'}"]))


def test_a_moved_run_resumes_with_terms_of_its_own_that_moved_along(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for part in ("m", "d", "soft_clip.py", "far.py"):
        (old / part).mkdir(parents=True)
    (old / "recipe.yaml").write_text(
        "name: t\nmodel: {path: m}\ndata: {train: d}\nevaluation: {every_steps: 0}\nalgorithm:\n"
        '  surrogate: "./soft_clip.py:soft_clip"\n  rejection: [token_veto, "./far.py:far"]\n'
    )
    with RunFolder(old / "runs" / "t") as folder:
        folder.open(load_recipe(old / "recipe.yaml"))
    trained = load_recipe(old / "recipe.yaml")
    begin(old / "runs" / "t")
    old.rename(new)
    run = new / "runs" / "t"
    # The folder that it lies in is what verifying.folder names: it moved too.
    assert RunFolder(run).check(load_recipe(new / "recipe.yaml"))
    # As `asyncrl reproduce` reads what a start was recorded with.
    moved = with_moved_files(trained, read_run_recipe(run))
    assert moved.algorithm == load_recipe(new / "recipe.yaml").algorithm
    assert moved.model.path == str(new / "m")
    assert first_difference(moved, read_run_recipe(run)) is None
    other = load_recipe(new / "recipe.yaml", [f"algorithm.surrogate={new}/soft_clip.py:other"])
    with pytest.raises(InputError, match=r"algorithm\.surrogate"):
        RunFolder(run).check(other)


def test_a_copied_run_is_its_own_folder_and_keeps_the_data_that_stayed(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("name: t\nmodel: {path: m}\ndata: {train: d, heldout: h}\n")
    (tmp_path / "d").write_text("")
    with RunFolder(tmp_path / "runs" / "t") as folder:
        folder.open(load_recipe(tmp_path / "recipe.yaml"))
    make_queue(tmp_path / "runs" / "t").journal.close()
    copy = shutil.copytree(tmp_path / "runs" / "t", tmp_path / "far" / "away" / "copy")
    assert read_run_recipe(copy).folder() == copy
    assert read_run_recipe(copy).data.train == str(tmp_path / "d")
    assert read_run_recipe(copy).verifying.own_files() == tmp_path


def test_the_same_files_under_another_name_resume(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "data")
    with RunFolder(tmp_path / "run") as folder:
        folder.open(make_recipe(data={"train": f"{tmp_path}/data", "heldout": "/h"}))
    assert RunFolder(tmp_path / "run").check(make_recipe(data={"train": f"{tmp_path}/link", "heldout": "/h"}))


def test_a_longer_run_on_other_servers_resumes(tmp_path: Path) -> None:
    with RunFolder(tmp_path) as folder:
        folder.open(make_recipe())
    assert RunFolder(tmp_path).check(make_recipe(trainer={"num_steps": 99}, serving={"num_servers": 2}))


def test_a_recipe_that_would_train_something_else_is_refused(tmp_path: Path) -> None:
    with RunFolder(tmp_path) as folder:
        folder.open(make_recipe())
    begin(tmp_path)
    changed = make_recipe(trainer={"adam_beta1": 0.5})
    with pytest.raises(InputError, match=r"trainer\.adam_beta1 = 0\.9, the recipe now says 0\.5"):
        RunFolder(tmp_path).check(changed)


def remarks(folder: Path, before: dict[str, object], now: dict[str, object]) -> list[str]:
    """Remarks on a run that was begun with one section `trainer` and resumes with another."""
    with RunFolder(folder) as opened:
        opened.open(make_recipe(trainer=before))
    begin(folder)
    resumed = RunFolder(folder)
    assert resumed.check(make_recipe(trainer=now))
    return resumed.resumption.remarks


def test_another_learning_rate_resumes_and_is_said_with_the_first_step_and_its_value(tmp_path: Path) -> None:
    (said,) = remarks(tmp_path, {"learning_rate": 1e-4}, {"learning_rate": 0.5, "warmup_steps": 5})
    assert said == (
        "learning rates change from step 1 on: trainer.learning_rate 0.0001 -> 0.5, trainer.warmup_steps "
        "0 -> 5. The policy's at that step is 0.1, and would have been 0.0001."
    )


def test_a_longer_run_changes_a_schedule_that_ends_with_it_and_no_other(tmp_path: Path) -> None:
    falling = {"learning_rate_schedule": "linear"}
    (said,) = remarks(tmp_path / "a", falling, {**falling, "num_steps": 99})
    assert "from step 1 on: trainer.num_steps 50 -> 99." in said
    fixed = {"learning_rate_schedule": {"name": "linear", "steps": 50}}
    assert remarks(tmp_path / "b", fixed, {**fixed, "num_steps": 99}) == []
    assert remarks(tmp_path / "c", {}, {"num_steps": 99}) == []


def test_a_run_that_never_began_may_be_changed(tmp_path: Path) -> None:
    with RunFolder(tmp_path) as folder:
        folder.open(make_recipe())
    make_queue(tmp_path).journal.close()
    assert not RunFolder(tmp_path).check(make_recipe(seed=5))


@pytest.mark.parametrize("recorded", [None, "", "2", "2,41"])
def test_a_run_resumes_only_where_the_same_tokens_are_never_sampled(
    tmp_path: Path, recorded: str | None
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"vocab_size": 40}')
    words = {f"t{i}": i for i in range(40) if i != 2}
    (model / "tokenizer.json").write_text(json.dumps({"model": {"vocab": words}}))
    recipe = make_recipe(model={"path": str(model)})
    with RunFolder(tmp_path / "run") as folder:
        folder.open(recipe)
    queue = make_queue(tmp_path / "run")
    queue.announce(0)
    if recorded is not None:
        queue.journal.write(set_fact(UNSAMPLED, recorded))
    # Nothing is lost of a run that has asked nothing yet.
    queue.journal.barrier_blocking()
    assert RunFolder(tmp_path / "run").check(recipe)
    queue.admit(make_task())
    queue.journal.close()
    if recorded == "2":
        assert RunFolder(tmp_path / "run").check(recipe)
        return
    with pytest.raises(
        InputError, match=f"never samples the token ids '{recorded or 'none'}'; now they are '2'"
    ):
        RunFolder(tmp_path / "run").check(recipe)


def test_a_run_is_complete_when_its_journal_says_so_and_the_recipe_asks_no_more(tmp_path: Path) -> None:
    folder, recipe = RunFolder(tmp_path), make_recipe(trainer={"num_steps": 4})
    assert folder.end(recipe) is None
    queue = make_queue(tmp_path)
    queue.announce(0)
    # An exported checkpoint of the last step alone does not do: its evaluation may be missing.
    queue.commit(4, "checkpoints/step-4")
    (tmp_path / "checkpoints" / "step-4" / "hf").mkdir(parents=True)
    queue.journal.barrier_blocking()
    assert folder.end(recipe) is None
    record_end(queue.journal, RunEnd(version=4, reason="num_steps"))
    queue.journal.barrier_blocking()
    assert folder.end(recipe) == RunEnd(version=4, reason="num_steps")
    assert folder.end(make_recipe(trainer={"num_steps": 5})) is None
    # A start continues the run.
    record_start(queue.journal, 4, "recipe")
    queue.journal.close()
    assert folder.end(recipe) is None


@pytest.mark.parametrize(("target", "is_end"), [(0.5, True), (0.6, True), (0.7, False), (None, False)])
def test_an_accuracy_that_was_reached_ends_the_run_until_the_recipe_asks_for_more(
    tmp_path: Path, target: float | None, is_end: bool
) -> None:
    queue = make_queue(tmp_path)
    record_end(queue.journal, RunEnd(version=4, reason="stop_at_accuracy", accuracy=0.6))
    queue.journal.close()
    recipe = make_recipe(trainer={"num_steps": 9}, evaluation={"every_steps": 2, "stop_at_accuracy": target})
    assert (RunFolder(tmp_path).end(recipe) is not None) is is_end


def test_a_run_knows_when_its_prompts_were_rendered_first(tmp_path: Path) -> None:
    assert RunFolder(tmp_path).rendering_time() is None
    queue = make_queue(tmp_path)
    queue.announce(0)
    assert RunFolder(tmp_path).rendering_time() is None
    queue.admit(make_task())
    first = datetime(2026, 1, 2, 3, 4, 5, 678901)
    record_rendering(queue.journal, first)
    record_rendering(queue.journal, datetime(2027, 1, 1))
    queue.journal.close()
    assert RunFolder(tmp_path).rendering_time() == first


def test_a_second_launcher_is_refused_while_the_first_runs(tmp_path: Path) -> None:
    first = RunFolder(tmp_path)
    first.open(make_recipe())
    with pytest.raises(InputError, match="in use by process"):
        RunFolder(tmp_path).open(make_recipe())
    first.close()
    with RunFolder(tmp_path) as second:
        second.open(make_recipe())


def test_ranks_may_be_divided_otherwise(tmp_path: Path) -> None:
    first = make_recipe(trainer={"num_processes": 2})
    with RunFolder(tmp_path) as folder:
        folder.open(first)
    begin(tmp_path)
    for parallel in (
        {"tensor": 2, "sequence_parallel": True},
        {"pipeline": 2, "virtual_stages": 2},
        {"context": 2},
        {"expert": 2},
        {"distributed_optimizer": True},
    ):
        changed = make_recipe(trainer={"num_processes": 2, "recompute": "full", "parallel": parallel})
        assert RunFolder(tmp_path).check(changed)


def begin(run_folder: Path) -> None:
    """A group was admitted: from now on the recipe must stay."""
    queue = make_queue(run_folder)
    queue.announce(0)
    queue.admit(make_task())
    queue.journal.close()
