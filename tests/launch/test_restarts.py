"""When a trainer that died is started again, when the run gives up, and what a failed start leaves."""

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes.commands import Command
from fakes.statuses import make_status

from asyncrl.errors import DiskError, Diverged, InputError, ServerError
from asyncrl.launch.restarts import failure_recorded, keep_training, record_cause
from asyncrl.launch.trainers import MAX_RESTARTS, TrainerFailed
from asyncrl.loops import RunPhase, Waits
from asyncrl.observe.metrics.mishaps import POST_MORTEM, RecentEvents
from asyncrl.readers.page.overview import read_head, read_line
from asyncrl.readers.page.runs import Run
from asyncrl.readers.page.views import read_servers
from asyncrl.readers.status import read_run
from asyncrl.run.status import starting, write_status


class DyingTrainer:
    """Ends with the next of `exit_codes` after `num_steps` steps and `num_commits` checkpoints each time."""

    def __init__(
        self,
        exit_codes: list[int],
        *,
        num_steps: int,
        num_commits: int,
        is_different_each_time: bool = True,
        is_further_each_time: bool = False,
    ) -> None:
        self.is_further_each_time = is_further_each_time
        self.exit_codes = exit_codes
        self.is_different_each_time = is_different_each_time
        self.num_steps, self.num_commits = num_steps, num_commits
        self.num_starts = 0
        self.controller: Any = SimpleNamespace(
            queue=SimpleNamespace(committed_version=0, version=0),
            context=SimpleNamespace(state=RunPhase(Waits()), session=SimpleNamespace(num_steps=1)),
        )

    async def wait(self) -> None:
        self.controller.context.session.num_steps += self.num_steps
        self.controller.queue.committed_version += self.num_commits
        queue = self.controller.queue
        # It restarts from its checkpoint and repeats what it trained since.
        further = queue.version if self.is_further_each_time else queue.committed_version
        queue.version = further + self.num_steps
        if self.exit_codes:
            raise TrainerFailed(f"it died:\n{self.words()}", exit_code=self.exit_codes.pop(0))

    def words(self) -> str:
        """The last line of its log."""
        return f"error {len(self.exit_codes)}" if self.is_different_each_time else "error"

    async def restart(self) -> None:
        self.num_starts += 1

    async def keep_training(self) -> None:
        trainers: Any = self
        await keep_training(trainers, self.controller, asyncio.Event(), Path("nowhere"), stop_seconds=4.0)


SAME_WORDS = {"num_steps": 5, "is_different_each_time": False}


@pytest.mark.parametrize(
    ("exit_code", "keys"),
    [
        # It is killed, and makes steps in between.
        (-9, {"num_steps": 1, "num_commits": 0}),
        # It fails between checkpoints.
        (1, {"num_steps": 5, "num_commits": 1}),
        # It may meet the same trouble again, a server that is away for instance.
        (1, SAME_WORDS | {"num_commits": 1}),
    ],
)
async def test_a_trainer_that_comes_further_starts_again_each_time(
    exit_code: int, keys: dict[str, Any]
) -> None:
    trainer = DyingTrainer([exit_code] * 20, **keys)
    await trainer.keep_training()
    assert trainer.num_starts == 20


@pytest.mark.parametrize(
    ("exit_code", "keys", "num_starts"),
    [
        # It is killed before each step.
        (-9, {"num_steps": 0, "num_commits": 0}, MAX_RESTARTS),
        # It fails at each checkpoint, although it repeats steps.
        (1, {"num_steps": 5, "num_commits": 0}, MAX_RESTARTS),
        # It fails twice with the same words and no checkpoint between.
        (1, SAME_WORDS | {"num_commits": 0}, 1),
        # The same words at a later step are another failure, but without a checkpoint between.
        (1, SAME_WORDS | {"num_commits": 0, "is_further_each_time": True}, MAX_RESTARTS),
        # It would end the same way again.
        (DiskError.EXIT_CODE, {"num_steps": 5, "num_commits": 1}, 0),
        (Diverged.EXIT_CODE, {"num_steps": 5, "num_commits": 1}, 0),
        (2, {"num_steps": 5, "num_commits": 1}, 0),
    ],
)
async def test_a_trainer_that_comes_no_further_is_given_up(
    exit_code: int, keys: dict[str, Any], num_starts: int
) -> None:
    trainer = DyingTrainer([exit_code] * 20, **keys)
    with pytest.raises(TrainerFailed):
        await trainer.keep_training()
    assert trainer.num_starts == num_starts


async def test_a_trainer_that_dies_while_the_run_stops_is_not_started_again_and_said_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    trainer, stopped = DyingTrainer([-9], num_steps=1, num_commits=0), asyncio.Event()
    stopped.set()
    trainers: Any = trainer
    await keep_training(trainers, trainer.controller, stopped, Path("nowhere"), stop_seconds=4.0)
    assert trainer.num_starts == 0
    assert "it died" in caplog.text and "trains again what came after the last checkpoint" in caplog.text


DIED = "server 0 ended while it started: exit code 1. Its last lines (logs/server-0.log):\nno such option"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "recipe.yaml").write_text("name: run\n")
    write_status(tmp_path, starting(step=0, total_steps=40))
    return tmp_path


def fail(folder: Path, error: BaseException) -> None:
    with pytest.raises(type(error)), failure_recorded(folder):
        raise error


def test_the_cause_of_a_failed_start_is_in_status_and_in_every_view_of_the_page(
    folder: Path, command: Command
) -> None:
    fail(folder, InputError(f"The run cannot start: {DIED}"))
    said = " ".join(command("status", folder, code=1).out.split())
    assert "state failed" in said
    assert "cause InputError: The run cannot start: server 0 ended while it started" in said
    run = Run("run", folder)
    found = read_servers(run)["found"]
    assert found is not None
    for view in (read_head(run), read_line(run), found):
        assert view["state"] == "failed"
        assert view["cause"] is not None and "no such option" in view["cause"]


def test_what_the_run_itself_wrote_down_is_kept(folder: Path) -> None:
    with pytest.raises(ExceptionGroup), failure_recorded(folder), RecentEvents() as events:
        error = ServerError("all servers are dead")
        record_cause(folder, error, {"Servers": "a: dead"}, events)
        write_status(folder, make_status(state="failed", step=7))
        raise ExceptionGroup("loops", [error])
    assert "a: dead" in (folder / POST_MORTEM).read_text()
    now = read_run(folder)
    assert (now.cause, now.step) == ("ServerError: all servers are dead", 7)


def test_the_cause_is_that_of_the_last_start(folder: Path) -> None:
    for words in ("the first", "the second"):
        fail(folder, ServerError(words))
        # Clocks of file systems tick in milliseconds.
        os.utime(folder / POST_MORTEM, (0, 0))
    assert read_run(folder).cause == "ServerError: the second"


def test_a_stop_is_no_failure(folder: Path) -> None:
    fail(folder, KeyboardInterrupt())
    assert not (folder / POST_MORTEM).exists()
    assert read_run(folder).state == "starting"
