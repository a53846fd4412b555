"""A run on this machine: servers, controller and trainer, from start-up to the last process gone.

The launcher and the controller share one process: when it dies, by whatever signal, the kernel takes the
others with it, and the same command resumes from the journal and the last checkpoint.
"""

import asyncio
import contextlib
import dataclasses
import importlib.metadata
import itertools
import logging
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl.checkpoints import find_newest
from asyncrl.controller import Controller, Inputs
from asyncrl.errors import AsyncrlError, InputError, ServerError
from asyncrl.journal.server_changes import read_changes, record_change
from asyncrl.journal.starts import (
    changed_data,
    record_data,
    record_model,
    record_rendering,
    record_start,
    words_of_change,
)
from asyncrl.journal.writer import Journal
from asyncrl.launch.servers import LocalServers
from asyncrl.launch.stopping import LastResort
from asyncrl.launch.trainers import MAX_RESTARTS, TrainerFailed, TrainerRanks
from asyncrl.model.folder import model_digest
from asyncrl.observe.live import LiveLine
from asyncrl.observe.metrics import MetricsWriter
from asyncrl.observe.observer import Observer
from asyncrl.observe.postmortem import RecentEvents, write_post_mortem
from asyncrl.observe.stage import stage
from asyncrl.recipe.file import dump_recipe
from asyncrl.run_folder import RunFolder, data_digests
from asyncrl.serving.sglang import new_session

log = logging.getLogger(__name__)

STOP_TRAINER_SECONDS = 4.0
"""After Ctrl-C: how long the trainer may take to finish its step and save before it is killed; what it then
loses is repeated from the journal."""


def has_gpu() -> bool:
    """Whether this machine has an NVIDIA GPU and a torch that can use it, without importing torch."""
    is_cpu_build = importlib.metadata.version("torch").endswith("+cpu")
    return not is_cpu_build and any(Path("/dev").glob("nvidia[0-9]*"))


class TerminalAndFile:
    """Tells both the person and metrics.jsonl; what it notes is remembered for a post-mortem."""

    def __init__(self, live: LiveLine, metrics: MetricsWriter, events: RecentEvents) -> None:
        self.events = events
        self._live = live
        self._metrics = metrics

    def step(self, row: dict[str, Any]) -> None:
        self._metrics.step(row)
        self._live.step(row)

    def evaluation(self, row: dict[str, Any]) -> None:
        self._metrics.evaluation(row)
        self._live.evaluation(row)

    def note(self, text: str) -> None:
        self.events.add(text)
        self._metrics.event("note", text=text)
        self._live.note(text)


@dataclass(frozen=True, slots=True)
class Ending:
    is_stopped: bool
    """Ended by Ctrl-C or SIGTERM before its last step."""
    conservation: dict[str, int]
    """Tokens: generated, trained, dropped and queued (`ReplayQueue.conservation`)."""


async def train(inputs: Inputs, folder: RunFolder, last_resort: LastResort) -> Ending:
    """Runs the recipe to its end, or until Ctrl-C, after which `last_resort` bounds what is left.

    Raises InputError with the last lines of a process that does not start, ServerError or TrainerFailed with
    those of one that cannot be kept alive. Every process has ended when this returns or raises.
    """
    recipe = inputs.recipe
    journal = Journal(folder.journal)
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(journal.close)
        session = await stack.enter_async_context(new_session())
        digests = data_digests(recipe)
        changed = changed_data(journal, digests)
        inputs = dataclasses.replace(inputs, has_moved_rows="data.train" in changed)
        changes = read_changes(journal, recipe.serving)
        servers = LocalServers(
            recipe,
            model_folder=Path(recipe.model.path),
            logs=folder.logs,
            session=session,
            has_gpu=has_gpu(),
            num_evaluation=recipe.evaluation.num_servers,
            changes=changes,
        )
        metrics = stack.enter_context(MetricsWriter(folder.metrics))
        events = stack.enter_context(RecentEvents())
        observer = TerminalAndFile(LiveLine(recipe.trainer.num_steps), metrics, events)
        controller = Controller(
            inputs,
            journal=journal,
            session=session,
            server_urls=servers.urls,
            restart_server=servers.restart,
            end_server=servers.end,
            added_servers=[url for url in changes.added if url not in servers.urls],
            servers_changed=lambda action, url: record_change(
                journal, action, url, is_local=url in servers.processes, serving=recipe.serving
            ),
            observer=observer,
            evaluation_urls=servers.evaluation_urls,
            run_folder=folder.path,
        )
        await stack.enter_async_context(controller)
        folder.controller_url.write_text(controller.queue_url)
        stack.callback(folder.controller_url.unlink, missing_ok=True)
        version = folder.resumption.version
        record_start(journal, version, dump_recipe(recipe))
        record_data(journal, digests)
        if (digest := model_digest(Path(recipe.model.path))) is not None:
            record_model(journal, digest)
        record_rendering(journal, inputs.rendered)
        for key in changed:
            observer.note(words_of_change(key))
        if controller.is_resumed:
            for remark in folder.resumption.remarks:
                observer.note(remark)
            metrics.resumed(version)
            observer.note(
                f"resuming {folder.path} at step {version}: {controller.queue.num_admitted} groups admitted"
            )
        trainers = TrainerRanks(
            recipe, run_folder=folder.path, logs=folder.logs, queue_url=controller.queue_url
        )
        stack.push_async_callback(servers.stop)
        stack.push_async_callback(trainers.stop)
        async with _stop_on_signals(controller, last_resort) as stopped:
            num_ranks = recipe.trainer.num_processes
            what = f"starting {len(servers.urls)} rollout server(s) and {num_ranks} trainer rank(s)"
            with stage(what):
                await trainers.start()
                try:
                    await _first_done(servers.start(), stopped, trainers)
                except (ServerError, TrainerFailed) as error:
                    raise InputError(f"The run cannot start: {error}") from error
            if not stopped.is_set():
                metrics.event("ready")
                try:
                    await controller.run(
                        lambda: _keep_training(trainers, controller, observer, stopped, folder),
                        kill_trainer=trainers.kill,
                    )
                except Exception as error:
                    state = controller.state_at_failure or controller.state()
                    _write_post_mortem(folder, first_cause(error), state, events)
                    raise
        journal.barrier_blocking()
        return Ending(stopped.is_set(), controller.queue.conservation())


def _write_post_mortem(
    folder: RunFolder, cause: BaseException, state: dict[str, str], events: RecentEvents
) -> None:
    """Must not hide the cause: it may be that the disk is full."""
    try:
        written = write_post_mortem(folder.path, cause, state=state, events=events)
    except OSError as error:
        log.error("who waited for whom could not be written: %s", error)
    else:
        log.error("who waited for whom, and the last lines of every process: %s", written)


async def _first_done(starting: Any, stopped: asyncio.Event, trainers: TrainerRanks) -> None:
    """Waits for the servers, but no longer than the trainer lives or nobody asks to stop.

    A trainer that was killed meanwhile is started again, MAX_RESTARTS times.
    """
    ready, asked = asyncio.create_task(starting), asyncio.create_task(stopped.wait())
    ended = asyncio.create_task(trainers.wait())
    try:
        for attempt in itertools.count():
            await asyncio.wait((ready, asked, ended), return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                break
            error = ended.exception()
            if attempt < MAX_RESTARTS and isinstance(error, TrainerFailed) and error.was_killed:
                log.warning("%s It starts again.", str(error).splitlines()[0])
                await trainers.stop()
                await trainers.start()
                ended = asyncio.create_task(trainers.wait())
                continue
            ended.result()
            break
        if ready.done():
            ready.result()
    finally:
        for task in (ready, asked, ended):
            task.cancel()
        await asyncio.gather(ready, asked, ended, return_exceptions=True)


async def _keep_training(
    trainers: TrainerRanks,
    controller: Controller,
    observer: Observer,
    stopped: asyncio.Event,
    folder: RunFolder,
) -> None:
    """Returns when the trainer ended well; restarts one that died, as long as it gets on in between."""
    num_failures, steps_before = 0, controller.report.num_steps
    num_errors, saved_before, failed_before = 0, controller.queue.committed_version, None
    while True:
        try:
            return await _wait_or_stop(trainers, stopped)
        except TrainerFailed as error:
            if stopped.is_set():
                return
            steps, saved = controller.report.num_steps, controller.queue.committed_version
            num_failures = num_failures + 1 if steps == steps_before else 1
            is_hopeless = error.is_certain
            if not error.was_killed:
                # What cannot save makes steps all the same, the same ones again and again.
                num_errors = num_errors + 1 if saved == saved_before else 1
                # The same batch on the same weights with the same words: it is no accident.
                failed = (controller.queue.version, str(error).rstrip().splitlines()[-1])
                is_hopeless |= steps == 0 or (failed == failed_before and saved == saved_before)
                failed_before = failed
            if is_hopeless or max(num_failures, num_errors) > MAX_RESTARTS:
                raise
            steps_before, saved_before = steps, saved
            log.error("%s", error)
            newest = await asyncio.to_thread(find_newest, folder.path / "checkpoints")
            observer.note(
                f"{str(error).splitlines()[0]} It restarts from its last checkpoint, at step "
                f"{newest.version or 0}."
            )
            for remark in newest.remarks():
                observer.note(remark)
            await trainers.stop()
            await trainers.start()


async def _wait_or_stop(trainers: TrainerRanks, stopped: asyncio.Event) -> None:
    """Waits for the trainer; once the run was asked to stop, for STOP_TRAINER_SECONDS at most."""
    ended = asyncio.create_task(trainers.wait())
    asked = asyncio.create_task(stopped.wait())
    try:
        await asyncio.wait((ended, asked), return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            await asyncio.wait((ended,), timeout=STOP_TRAINER_SECONDS)
        if ended.done():
            ended.result()
        else:
            log.warning("the trainer did not finish its step in time; it repeats it when the run resumes")
    finally:
        ended.cancel()
        asked.cancel()


@contextlib.asynccontextmanager
async def _stop_on_signals(controller: Controller, last_resort: LastResort) -> AsyncIterator[asyncio.Event]:
    """SIGINT, SIGTERM and SIGHUP end the run after the current step, or after STOP_TRAINER_SECONDS without
    it; a second one at once. What `nohup` ignores stays ignored."""
    stopped, loop = asyncio.Event(), asyncio.get_running_loop()
    main_task = asyncio.current_task()
    assert main_task is not None

    def on_signal() -> None:
        if stopped.is_set():
            main_task.cancel()
            return
        stopped.set()
        log.warning(
            "stopping after the current step if it ends within %g s, else it is repeated on resume; press "
            "again to stop at once",
            STOP_TRAINER_SECONDS,
        )
        controller.stop()

    numbers = [signal.SIGINT, signal.SIGTERM]
    numbers += [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN else []
    for number in numbers:
        loop.add_signal_handler(number, on_signal)
    last_resort.watch(*numbers)
    try:
        yield stopped
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def first_cause(error: BaseException) -> BaseException:
    """The error of ours (or the first one) inside the groups that task groups raise."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    causes = [first_cause(inner) for inner in error.exceptions]
    return next((cause for cause in causes if isinstance(cause, AsyncrlError)), causes[0])
