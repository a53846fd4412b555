"""`asyncrl check` on a run that has begun says what `train` would do with the data as it is now."""

import shutil
from pathlib import Path

import pytest
from fakes.commands import Command
from fakes.newcomer import row, write_project
from fakes.records import finish, generate, make_queue, make_score

from asyncrl.journal.starts import RunEnd, record_data, record_end
from asyncrl.launch.preflight import read_inputs
from asyncrl.recipe.file import load_recipe
from asyncrl.run.folder import RunFolder, data_digests

REPEATED = "replay.repeated_groups_per_batch=1"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    write_project(tmp_path)
    return tmp_path


def begin_run(project: Path, *overrides: str, is_taken: bool = False, ended: int | None = None) -> None:
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
    if ended is not None:
        record_end(queue.journal, RunEnd(version=ended, reason="num_steps"))
    queue.journal.close()


@pytest.mark.parametrize(("is_taken", "overrides"), [(False, ()), (True, (REPEATED,))])
def test_a_prompt_that_is_gone_is_said_as_train_says_it(
    project: Path, is_taken: bool, overrides: tuple[str, ...], command: Command
) -> None:
    begin_run(project, *overrides, is_taken=is_taken)
    words = ["check", str(project / "recipe.yaml"), *overrides]
    assert "resumes at step 1" in command(*words).out
    (project / "train.jsonl").write_text(row("9+1=", "10"))
    said = command(*words, code=2).err
    assert "unfinished answers to train:1, '1+1=', and no row has that prompt" in said


def test_a_run_that_is_complete_is_not_said_to_resume(project: Path, command: Command) -> None:
    begin_run(project, "trainer.num_steps=2", ended=2)
    words = ["check", str(project / "recipe.yaml")]
    said = command(*words, "trainer.num_steps=2").out
    assert "(complete, ended by trainer.num_steps, at step 2)" in said
    assert "(resumes at step 1)" in command(*words, "trainer.num_steps=3").out


def test_a_taken_group_that_is_never_asked_for_again_needs_no_row(project: Path, command: Command) -> None:
    begin_run(project, is_taken=True)
    (project / "train.jsonl").write_text(row("9+1=", "10"))
    command("check", project / "recipe.yaml")


ROOM = ("rollout.max_staleness=4", "replay.max_uses=9", REPEATED)
"""Whatever the first of three batches held may be in the fourth."""


@pytest.mark.parametrize(
    ("overrides", "rewards"),
    [
        (("rollout.abort_staleness=1",), (1.0, 0.0)),
        (("rollout.max_staleness=1",), (1.0, 0.0)),
        (("replay.max_uses=2",), (1.0, 0.0)),
        (("trainer.num_steps=3",), (1.0, 0.0)),
        ((), (1.0, 1.0)),
    ],
    ids=["aborted when stale", "stale", "used up", "the run has all its batches", "without a gradient"],
)
def test_a_prompt_that_no_later_batch_may_repeat_needs_no_row(
    project: Path, overrides: tuple[str, ...], rewards: tuple[float, float], command: Command
) -> None:
    take_three_batches(project, *ROOM, *overrides, first_rewards=rewards)
    leave_out(project, "1+1=")
    assert "resumes at step 1" in command("check", project / "recipe.yaml", *ROOM, *overrides).out


def test_a_prompt_that_a_later_batch_may_repeat_needs_its_row(project: Path, command: Command) -> None:
    take_three_batches(project, *ROOM)
    leave_out(project, "1+1=")
    said = command("check", project / "recipe.yaml", *ROOM, code=2).err
    assert "unfinished answers to train:1, '1+1='" in said


def take_three_batches(
    project: Path, *overrides: str, first_rewards: tuple[float, float] = (1.0, 0.0)
) -> None:
    """A run that trained a group of each of the first three rows; the first one is in two batches."""
    recipe = load_recipe(project / "recipe.yaml", overrides)
    tasks = read_inputs(recipe)[0].train_tasks
    with RunFolder(recipe.folder()) as folder:
        folder.open(recipe)
    queue = make_queue(recipe.folder(), batch=1, staleness=4, repeated=1)
    record_data(queue.journal, data_digests(recipe))
    for step, rewards in enumerate([first_rewards, (1.0, 0.0), (1.0, 0.0)]):
        queue.announce(step)
        group = queue.admit(tasks[step])
        generate(queue, group, version=step)
        for trajectory, reward in zip(group.trajectories, rewards, strict=True):
            queue.score(group, trajectory, make_score(reward), "text")
        mean = sum(rewards) / 2
        names = [trajectory.trajectory_id for trajectory in group.trajectories]
        queue.make_ready(group, {name: reward - mean for name, reward in zip(names, rewards, strict=True)})
        assert queue.take(step) is not None
    queue.journal.close()


def leave_out(project: Path, prompt: str) -> None:
    lines = (project / "train.jsonl").read_text().splitlines()
    (project / "train.jsonl").write_text("\n".join(line for line in lines if f'"{prompt}"' not in line))


def test_a_file_that_changed_is_named(project: Path, command: Command) -> None:
    begin_run(project)
    shutil.copy(project / "train.jsonl", project / "before.jsonl")
    (project / "train.jsonl").write_text(row("9+1=", "10") + "\n" + row())
    out = command("check", project / "recipe.yaml").out
    assert "the file of data.train has changed" in out and "data.heldout has changed" not in out
    shutil.copy(project / "before.jsonl", project / "train.jsonl")
    assert "has changed" not in command("check", project / "recipe.yaml").out
