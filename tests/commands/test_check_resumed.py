"""`asyncrl check` on a run that has begun says what `train` would do with the data as it is now."""

import shutil
from pathlib import Path

import pytest
from fakes.newcomer import row, write_project
from fakes.records import finish, make_queue

from asyncrl import cli
from asyncrl.journal.starts import record_data
from asyncrl.launch.preflight import read_inputs
from asyncrl.recipe.file import load_recipe
from asyncrl.run.folder import RunFolder, data_digests

REPEATED = "replay.repeated_groups_per_batch=1"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    write_project(tmp_path)
    return tmp_path


def begin_run(project: Path, *overrides: str, is_taken: bool = False) -> None:
    """A run of the first row of train.jsonl: its group is open, or taken and one that may be repeated."""
    recipe = load_recipe(project / "recipe.yaml", overrides)
    inputs, _ = read_inputs(recipe)
    with RunFolder(recipe.folder()) as folder:
        folder.open(recipe)
    queue = make_queue(recipe.folder(), batch=1)
    record_data(queue.journal, data_digests(recipe))
    queue.announce(0)
    group = queue.admit(inputs.train_tasks[0])
    if is_taken:
        finish(queue, group, version=0)
        queue.take(0)
    queue.journal.close()


@pytest.mark.parametrize(("is_taken", "overrides"), [(False, ()), (True, (REPEATED,))])
def test_a_prompt_that_is_gone_is_said_as_train_says_it(
    project: Path, is_taken: bool, overrides: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    begin_run(project, *overrides, is_taken=is_taken)
    words = ["check", str(project / "recipe.yaml"), *overrides]
    assert cli.main(words) == 0
    assert "resumes at step 1" in capsys.readouterr().out
    (project / "train.jsonl").write_text(row("9+1=", "10"))
    assert cli.main(words) == 2
    assert "unfinished answers to train:1, '1+1=', and no row has that prompt" in capsys.readouterr().err


def test_a_taken_group_that_is_never_asked_for_again_needs_no_row(project: Path) -> None:
    begin_run(project, is_taken=True)
    (project / "train.jsonl").write_text(row("9+1=", "10"))
    assert cli.main(["check", str(project / "recipe.yaml")]) == 0


def test_a_file_that_changed_is_named(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    begin_run(project)
    shutil.copy(project / "train.jsonl", project / "before.jsonl")
    (project / "train.jsonl").write_text(row("9+1=", "10") + "\n" + row())
    assert cli.main(["check", str(project / "recipe.yaml")]) == 0
    out = capsys.readouterr().out
    assert "the file of data.train has changed" in out and "data.heldout has changed" not in out
    shutil.copy(project / "before.jsonl", project / "train.jsonl")
    assert cli.main(["check", str(project / "recipe.yaml")]) == 0
    assert "has changed" not in capsys.readouterr().out
