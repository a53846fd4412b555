"""When a trainer that died is started again, when the run gives up, and what a failed start leaves behind."""

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any

from asyncrl.controller.controller import Controller
from asyncrl.errors import AsyncrlError
from asyncrl.launch.trainers import MAX_RESTARTS, TrainerFailed, TrainerRanks
from asyncrl.loops import end_tasks
from asyncrl.observe.metrics.mishaps import POST_MORTEM, RecentEvents, write_post_mortem
from asyncrl.run.checkpoints import find_newest
from asyncrl.run.status import ENDS, read_status, write_status

log = logging.getLogger(__name__)


@contextlib.contextmanager
def failure_recorded(run_folder: Path) -> Iterator[None]:
    """Where the block raises, status.json says "failed" and the post-mortem why, as far as neither has been
    written by then. Ctrl-C is no failure."""
    before = _written_at(run_folder)
    with RecentEvents() as events:
        try:
            yield
        except Exception as error:
            if _written_at(run_folder) == before:
                record_cause(run_folder, first_cause(error), {}, events)
            _record_state(run_folder)
            raise


def record_cause(
    run_folder: Path, cause: BaseException, state: Mapping[str, str], events: RecentEvents
) -> None:
    """Writes the post-mortem. Must not hide the cause: it may be that the disk is full."""
    try:
        written = write_post_mortem(run_folder, cause, state=state, events=events)
    except OSError as error:
        log.error("the post-mortem could not be written: %s", error)
    else:
        log.error("what each part waited for, and the last lines of every process: %s", written)


def first_cause(error: BaseException) -> BaseException:
    """The error of ours (or the first one) inside the groups that task groups raise."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    causes = [first_cause(inner) for inner in error.exceptions]
    return next((cause for cause in causes if isinstance(cause, AsyncrlError)), causes[0])


def _record_state(run_folder: Path) -> None:
    with contextlib.suppress(OSError):
        status = read_status(run_folder)
        if status is not None and status["state"] not in ENDS:
            write_status(run_folder, {**status, "state": "failed", "time_seconds": round(time.time(), 3)})


def _written_at(run_folder: Path) -> int | None:
    try:
        return (run_folder / POST_MORTEM).stat().st_mtime_ns
    except OSError:
        return None


async def wait_for_start(
    starting: Coroutine[Any, Any, None], stopped: asyncio.Event, trainers: TrainerRanks | None
) -> None:
    """Waits for the servers, until the trainer fails or the run is asked to stop. `trainers` is None while
    none has started.

    A trainer that is killed meanwhile starts again, MAX_RESTARTS times.
    """
    ready, asked = asyncio.create_task(starting), asyncio.create_task(stopped.wait())
    ended = asyncio.create_task(trainers.wait() if trainers is not None else asyncio.Event().wait())
    try:
        for attempt in itertools.count():
            await asyncio.wait((ready, asked, ended), return_when=asyncio.FIRST_COMPLETED)
            if trainers is None or not ended.done():
                break
            error = ended.exception()
            if attempt < MAX_RESTARTS and isinstance(error, TrainerFailed) and error.was_killed:
                log.warning("%s It starts again.", str(error).splitlines()[0])
                await trainers.restart()
                ended = asyncio.create_task(trainers.wait())
                continue
            ended.result()
            break
        if ready.done():
            ready.result()
    finally:
        for task in (ready, asked, ended):
            task.cancel()
        # Takes what they failed with, too.
        await asyncio.gather(ready, asked, ended, return_exceptions=True)


async def keep_training(
    trainers: TrainerRanks,
    controller: Controller,
    stopped: asyncio.Event,
    checkpoints: Path,
    *,
    stop_seconds: float,
) -> None:
    """Returns when the trainer ended well; restarts one that died, as long as it makes progress in between.

    Once the run was asked to stop, the trainer has `stop_seconds` to finish its step and to save. Raises
    TrainerFailed.
    """
    num_failures, steps_before = 0, controller.context.session.num_steps
    num_errors, saved_before, failed_before = 0, controller.queue.committed_version, None
    while True:
        try:
            if not await _wait_or_stop(trainers, stopped, stop_seconds):
                controller.context.state.cut_off()
            return
        except TrainerFailed as error:
            if stopped.is_set():
                controller.context.state.cut_off()
                log.error("%s", error)
                log.warning("The next start trains again what came after the last checkpoint.")
                return
            steps, saved = controller.context.session.num_steps, controller.queue.committed_version
            num_failures = num_failures + 1 if steps == steps_before else 1
            is_hopeless = error.is_certain
            if not error.was_killed:
                # A trainer that cannot save still makes steps: the same ones again and again.
                num_errors = num_errors + 1 if saved == saved_before else 1
                # The same batch on the same weights fails with the same words: no accident.
                failed = (controller.queue.version, str(error).rstrip().splitlines()[-1])
                is_hopeless |= steps == 0 or (failed == failed_before and saved == saved_before)
                failed_before = failed
            if is_hopeless or max(num_failures, num_errors) > MAX_RESTARTS:
                raise
            steps_before, saved_before = steps, saved
            log.error("%s", error)
            newest = await asyncio.to_thread(find_newest, checkpoints)
            begin = f"its last checkpoint, at step {newest.version}" if newest.version else "the base model"
            log.warning("The trainer restarts from %s.", begin)
            for remark in newest.remarks():
                log.warning("%s", remark)
            await trainers.restart()


async def _wait_or_stop(trainers: TrainerRanks, stopped: asyncio.Event, stop_seconds: float) -> bool:
    """Waits for the trainer; once the run was asked to stop, for `stop_seconds` at most. Whether it ended."""
    ended = asyncio.create_task(trainers.wait())
    asked = asyncio.create_task(stopped.wait())
    try:
        await asyncio.wait((ended, asked), return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            await asyncio.wait((ended,), timeout=stop_seconds)
        if ended.done():
            ended.result()
        else:
            log.warning(
                "the trainer did not finish its step and save within %g s "
                "(trainer.stop_timeout_seconds); the next start trains again what came after the last "
                "checkpoint",
                stop_seconds,
            )
        return ended.done()
    finally:
        await end_tasks(ended, asked)
