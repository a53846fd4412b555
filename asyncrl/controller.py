"""The controller: an asyncio process without torch that owns tasks, trajectories, verdicts and the queue.

task file -> [feed] -> replay queue {open -> ready -> taken -> trained | dropped} -> take -> [train]
                          ^ segments as they stream, verdicts, advantages                       |
                          [rollout x K] <- generate <- servers <---------- publish -------------+

| loop        | takes         | gives                              | waits for             | woken by        |
|-------------|---------------|------------------------------------|-----------------------|-----------------|
| feed        | a task        | an open group                      | the bound, a server   | take, drop,     |
|             |               |                                    | with room             | a new version   |
| rollout x K | an open group | segments as they stream; at the    | tokens, then verdicts | the stream, the |
|             |               | end verdicts and advantages: ready |                       | verifier pool   |
| recall      | -             | streams that end early, to resume  | a round's end, a      | the queue, the  |
|             |               | from their prefixes                | drop, silence, removal| fleet, a timer  |
| serve       | `take`        | a batch of scored sequences        | enough ready groups   | rollout         |
| drain       | `drain`       | servers that generate nothing      | what is in flight, for| rollout         |
|             |               |                                    | interrupt: drain      |                 |
| train (the  | a batch       | a new version                      | `take`; its last      | serve; replies  |
| trainer's)  |               |                                    | publish               | of the servers  |

Serve and drain are in trainer_desk.py. Every wait goes through one Waits, which knows all waits by name:
when nothing moves for too long, the run ends and says who waited for what.
"""

import asyncio
import contextlib
import functools
import itertools
import logging
import math
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import aiohttp

from asyncrl.algorithms.advantages import find_advantage
from asyncrl.errors import AsyncrlError
from asyncrl.evaluation.run import Evaluator
from asyncrl.evaluation.schedule import HeldOutSchedule
from asyncrl.journal.counters import DROPPED, GENERATED
from asyncrl.journal.writer import Journal
from asyncrl.observe.observer import Observer
from asyncrl.recipe import Recipe
from asyncrl.records import DropReason, SamplingParams, Task
from asyncrl.replay.recovery import restore
from asyncrl.replay.replay_queue import ReplayQueue
from asyncrl.replay.service import QueueService
from asyncrl.replay.settings import QueueSettings
from asyncrl.rollout.complete import GroupCompletion
from asyncrl.rollout.early_abort import EarlyAbort
from asyncrl.rollout.filter import SignalFilter, group_signal
from asyncrl.rollout.generate import Generator
from asyncrl.rollout.grade import Grader
from asyncrl.rollout.oversampling import Oversampling
from asyncrl.rollout.tasks import TaskOrder, VerifierCache
from asyncrl.rollout.text import TextCodec
from asyncrl.serving.fleet import Fleet, leave_alone
from asyncrl.serving.pinned import PinnedServers
from asyncrl.serving.speed import watch_speed
from asyncrl.step_metrics import Reading, StepReport
from asyncrl.take import TakeDesk
from asyncrl.waits import Waits, now_seconds
from asyncrl.watchdog import Watch, watch
from asyncrl.zero_reward import ZeroReward

log = logging.getLogger(__name__)

WATCH_INTERVAL_SECONDS = 5.0
"""Between two looks of the watchdog."""
ENDING_SECONDS = 5.0
"""From a request to stop: how long verdicts, evaluations and streams may take to end by themselves. What is
cut off is in the journal as far as it came."""
MAX_TRAINER_KILLS = 3
"""Of hung trainers in a run; the next one that hangs ends it."""


@dataclass(frozen=True)
class Inputs:
    """What a run works on, read and checked before anything starts."""

    recipe: Recipe
    train_tasks: list[Task]
    heldout_tasks: list[Task]
    codec: TextCodec
    verifiers: VerifierCache
    context_tokens: int
    has_moved_rows: bool = False
    """data.train is not the file that the run's journal was written with."""
    rendered: datetime = field(default_factory=datetime.now)
    """The time that chat templates were told, local and without a zone: a later start tells them the same."""

    def longest_prompt(self) -> int:
        """Of the training tasks, in tokens."""
        return max(len(task.prompt_tokens) for task in self.train_tasks)


class Controller:
    """Everything between the task file and the trainer. Async context manager; `run` once."""

    def __init__(
        self,
        inputs: Inputs,
        *,
        journal: Journal,
        session: aiohttp.ClientSession,
        server_urls: list[str],
        restart_server: Callable[[str], Awaitable[None]],
        observer: Observer,
        end_server: Callable[[str], Awaitable[None]] = leave_alone,
        added_servers: Sequence[str] = (),
        servers_changed: Callable[[str, str], None] = lambda action, url: None,
        evaluation_urls: Sequence[str] = (),
        run_folder: Path | None = None,
    ) -> None:
        recipe = inputs.recipe
        self._recipe = recipe
        self._inputs = inputs
        self._observer = observer
        self.waits = Waits()
        advantage = find_advantage(recipe.algorithm)
        has_signal = group_signal(advantage, recipe.algorithm)
        self.queue = ReplayQueue(
            journal, QueueSettings.of(recipe), has_signal=has_signal, changed=self.waits.notify
        )
        self._order = TaskOrder(inputs.train_tasks, seed=recipe.seed, is_shuffled=recipe.data.is_shuffled)
        restore(self.queue, functools.partial(self._order.find, may_have_moved=inputs.has_moved_rows))
        self.is_resumed = self.queue.num_admitted > 0
        make_fleet = functools.partial(
            Fleet,
            session=session,
            waits=self.waits,
            max_running_requests=recipe.serving.max_running_requests,
            restart=restart_server,
            stop=end_server,
            install_seconds=recipe.serving.request_timeout_seconds,
        )
        self.fleet = make_fleet(server_urls, interrupt=recipe.rollout.interrupt)
        sampling = SamplingParams(
            recipe.rollout.temperature, recipe.rollout.max_new_tokens, inputs.codec.stop_token_ids
        )
        retries = recipe.rollout.max_fault_retries
        run_id = secrets.token_hex(4)
        self._oversampling = Oversampling(self.queue, recipe.rollout.oversampling)
        self._grader = Grader(
            recipe.verifying,
            inputs.verifiers,
            max_fault_retries=retries,
            note=observer.note,
            prints=None if run_folder is None else run_folder / "logs" / "verifiers.log",
        )
        self._generator = Generator(
            queue=self.queue,
            fleet=self.fleet,
            waits=self.waits,
            sampling=sampling,
            context_tokens=inputs.context_tokens,
            silence_seconds=recipe.serving.request_timeout_seconds,
            max_retries=retries,
            run_id=run_id,
            is_cache_recomputed=recipe.rollout.interrupt == "retract",
            ends_with_its_version=recipe.rollout.interrupt == "drain",
            tokens_per_round=recipe.rollout.tokens_per_round,
            is_parked=self._oversampling.is_over,
        )
        self._early_abort = EarlyAbort(
            self._generator, self._oversampling, self.waits, hedge_seconds=recipe.serving.hedge_seconds
        )
        self._completion = GroupCompletion(
            self.queue,
            self._generator,
            self._grader,
            inputs.codec,
            advantage,
            recipe.algorithm,
            self.waits,
            SignalFilter(recipe.replay.drops_no_signal, recipe.replay.max_dropped_in_a_row, has_signal),
        )
        pinned: PinnedServers | None = None
        if evaluation_urls:
            assert run_folder is not None, "the pinned publications need a place"
            fleet = make_fleet(list(evaluation_urls))
            pinned = PinnedServers(fleet, self.waits, run_folder / "evaluation")
        evaluator = Evaluator(
            fleet=pinned.fleet if pinned else self.fleet,
            waits=self.waits,
            grader=self._grader,
            codec=inputs.codec,
            sampling=SamplingParams(
                recipe.evaluation.temperature, recipe.rollout.max_new_tokens, inputs.codec.stop_token_ids
            ),
            context_tokens=inputs.context_tokens,
            silence_seconds=recipe.serving.request_timeout_seconds,
            run_id=run_id,
            counter=itertools.count(),
        )
        self._heldout = HeldOutSchedule(
            recipe.evaluation,
            inputs.heldout_tasks,
            evaluator,
            pinned,
            waits=self.waits,
            observer=observer,
            spawn=self._start,
            reached_target=lambda: self.desk.end(),
        )
        self.report = StepReport(
            observer,
            read=self._read,
            pool_metrics=self._grader.pool_metrics,
            heldout=lambda: self._heldout.accuracies,
        )
        loop = asyncio.get_running_loop()
        self._failure: asyncio.Future[None] = loop.create_future()
        journal.on_failure = lambda error: _tell(loop, self._fail, error)
        self.desk = TakeDesk(
            recipe,
            queue=self.queue,
            fleet=self.fleet,
            generator=self._generator,
            heldout=self._heldout,
            report=self.report,
            zero_reward=ZeroReward(
                observer.note, inputs.codec.decode, max_new_tokens=recipe.rollout.max_new_tokens
            ),
            waits=self.waits,
            fail=self._fail,
            is_resumed=self.is_resumed,
        )
        self._service = QueueService(
            self.desk.take,
            self.desk.commit,
            drain=self.desk.drain,
            change_servers=self._change_servers,
        )
        self._added_servers = added_servers
        self._servers_changed = servers_changed
        self._loops: asyncio.TaskGroup | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        """Of the loops and groups that run now."""
        self._must_end_at = math.inf
        """As `now_seconds`, once the run was asked to stop."""
        self._is_training = False
        self._num_trainer_kills = 0
        self._kill_trainer: Callable[[str], None] = lambda why: None
        self.state_at_failure: dict[str, str] | None = None
        """`state` when the first loop failed."""
        self.is_stopped = False
        """Somebody asked the run to stop before its end."""

    @property
    def queue_url(self) -> str:
        return self._service.url

    async def __aenter__(self) -> "Controller":
        await self._grader.__aenter__()
        await self._service.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._service.close()
        if self._failure.done() and not self._failure.cancelled():
            # While the servers start nobody awaits it; then the trainer or the journal says the same.
            self._failure.exception()
        await self.fleet.close()
        await self._heldout.close()
        await self._grader.__aexit__(*exception)

    def stop(self) -> None:
        """Stops after the current step; in-flight requests are aborted, their prefixes kept."""
        self.is_stopped = self.desk.is_over = self._generator.is_stopping = True
        self._must_end_at = now_seconds() + ENDING_SECONDS
        self.waits.notify()
        if self._loops is not None:
            self._start(self._interrupt(), "interrupt")

    async def run(
        self, train: Callable[[], Awaitable[None]], *, kill_trainer: Callable[[str], None] | None = None
    ) -> None:
        """Runs all loops until `train` returns, then evaluates what it made. Raises what any loop raised.

        `kill_trainer` is called, with the reason, when the trainer hangs; `train` is to start another one.
        """
        self._kill_trainer = kill_trainer or self._kill_trainer
        self.fleet.start()
        for url in self._added_servers:
            self.fleet.add(url)
        try:
            async with asyncio.TaskGroup() as loops:
                self._loops, self.desk.is_open = loops, True
                self.waits.notify()
                background = [
                    self._start(self._feed(), "feed"),
                    self._start(self._watch(), "watch"),
                    self._start(self._early_abort.run(), "recall"),
                    self._start(watch_speed(self.fleet, recipe=self._recipe.serving), "speed"),
                    self._start(self._raise_failure(), "failure"),
                ]
                self._is_training = True
                await self._noting_failure(train())
                self._is_training = False
                self.desk.is_over = self._generator.is_stopping = True
                self.waits.notify()
                if not self.is_stopped and self.queue.version is not None:
                    await self._heldout.wait(self.fleet.published(), "after", unless=lambda: self.is_stopped)
                for task in background:
                    task.cancel()
                await self._end_groups()
        finally:
            self._loops, self.desk.is_open = None, False

    def state(self) -> dict[str, str]:
        """Title -> lines, for the post-mortem: who waits for whom, the servers, the groups, the tokens."""
        groups = [
            f"  {group.group_id}: {group.state.value}, admitted at version {group.admitted_version}, "
            f"{sum(t.finish is not None for t in group.trajectories)} of {len(group.trajectories)} ended, "
            f"{len(group.scores)} verdicts, {group.num_tokens()} tokens"
            for group in self.queue.live.values()
        ]
        servers = [
            f"  {server.url}: {server.state.value}, version {server.version}, {server.num_running} requests, "
            f"{server.num_restarts} restarts{f', {server.reason}' if server.reason else ''}"
            for server in self.fleet.servers.values()
        ]
        tokens = [f"  {name}: {count}" for name, count in self.queue.conservation().items()]
        return {
            "Who waited for whom": self.waits.describe_waits(),
            "Servers": "\n".join(servers),
            f"Groups in the queue (trainer at version {self.queue.version})": "\n".join(groups),
            "Tokens": "\n".join(tokens),
        }

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> "asyncio.Task[None]":
        assert self._loops is not None
        task = self._loops.create_task(self._noting_failure(work), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not self._tasks:
            self.waits.notify()

    async def _end_groups(self) -> None:
        """Waits for what still streams, is graded or evaluated; in a run that stops not for long.

        A verifier that hangs must not hold a run up that was asked to stop.
        """
        await self.waits.wait_until(
            lambda: self.is_stopped or not self._tasks, owner="run", blocker="verdicts and evaluations"
        )
        left = list(self._tasks)
        if left:
            await asyncio.wait(left, timeout=max(0.0, self._must_end_at - now_seconds()))
        for task in left:
            task.cancel()

    async def _noting_failure(self, work: Awaitable[None]) -> None:
        """`work`; when it fails, the state of that moment is kept, before the other loops are cancelled."""
        try:
            await work
        except Exception:
            self.state_at_failure = self.state_at_failure or self.state()
            raise

    async def _raise_failure(self) -> None:
        await self._failure

    async def _feed(self) -> None:
        """Resumes what the journal left open, then admits tasks while bound and servers allow."""
        assert self._loops is not None
        for group in list(self.queue.live.values()):
            if not group.advantages:
                self._start(self._completion.run(group), f"group {group.group_id}")
        size = self._recipe.trajectories_per_group()
        while True:
            await self.waits.wait_until(
                lambda: (
                    not self.desk.is_over
                    and self.queue.can_admit()
                    and self._oversampling.may_admit(self._generator.num_waiting)
                    and self.fleet.pick(size, is_new=True) is not None
                ),
                owner="feed",
                blocker="the staleness bound or room on a server",
            )
            group = self.queue.admit(self._order.at(self.queue.num_admitted))
            self._start(self._completion.run(group), f"group {group.group_id}")
            # One loop turn, so that the new group takes its place on a server before the next is admitted.
            await asyncio.sleep(0)

    def _fail(self, error: Exception) -> None:
        """Ends the run with an error that came up while the trainer was answered."""
        if not self._failure.done():
            self._failure.set_exception(error)

    def _change_servers(self, action: str, url: str) -> list[dict[str, Any]]:
        rows = self.fleet.change_and_list(action, url)
        if action != "list":
            self._servers_changed(action, url)
        return rows

    def _read(self) -> Reading:
        return Reading(
            now_seconds(),
            self.queue.counters.get(GENERATED, 0),
            self.queue.counters.get(DROPPED + DropReason.NO_SIGNAL, 0),
            self.fleet.busy_seconds(),
            len(self.fleet.servers),
        )

    async def _interrupt(self) -> None:
        await self._generator.interrupt(timeout_seconds=ENDING_SECONDS)

    async def _watch(self) -> None:
        """Warns, acts and at last ends the run when the rollout side or the trainer does not move."""
        serving, step_seconds = self._recipe.serving, self._recipe.trainer.step_timeout_seconds
        limit = serving.request_timeout_seconds
        rollout = Watch(
            what="no token, verdict or server, while the trainer waits for a batch",
            knob="serving.request_timeout_seconds",
            is_due=lambda: self.desk.num_waiting > 0,
            progress=self._rollout_progress,
            act=self.fleet.restart_stuck,
            warn_seconds=0.5 * limit,
            # Later than the limit of a single stream, which is the more precise remedy.
            act_seconds=1.5 * limit,
            stop_seconds=2.0 * limit + serving.start_timeout_seconds,
        )
        trainer = Watch(
            what="the trainer has a batch and did not come back",
            knob="trainer.step_timeout_seconds",
            is_due=lambda: self.desk.num_waiting == 0 and self._is_training,
            # A trainer that was killed and restarted has its own time, a few times.
            progress=lambda: (self.desk.num_asked, min(self._num_trainer_kills, MAX_TRAINER_KILLS)),
            act=self._kill_hung_trainer,
            warn_seconds=0.5 * step_seconds,
            act_seconds=step_seconds,
            stop_seconds=2.0 * step_seconds,
        )
        await watch(
            [rollout, trainer],
            interval_seconds=WATCH_INTERVAL_SECONDS,
            describe=self.waits.describe_waits,
            note=self._observer.note,
        )

    def _kill_hung_trainer(self, why: str) -> None:
        self._num_trainer_kills += 1
        self._kill_trainer(why)

    def _rollout_progress(self) -> Any:
        verdicts = sum(len(group.scores) for group in self.queue.live.values())
        servers = [(server.state, server.num_restarts) for server in self.fleet.servers.values()]
        if not self.fleet.has_hope():
            reasons = "; ".join(f"{s.url}: {s.reason}" for s in self.fleet.servers.values())
            raise AsyncrlError(f"No rollout server is left. {reasons}")
        # A group that is dropped because its servers fail is no progress.
        tokens = self.queue.counters.get(GENERATED, 0), self._heldout.num_tokens
        return tokens, self.queue.num_steps_taken, self.queue.version, verdicts, servers


def _tell(loop: asyncio.AbstractEventLoop, fail: Callable[[Exception], None], error: Exception) -> None:
    """Calls `fail` in its loop, from any thread; a loop that is closed needs not be told."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(fail, error)
