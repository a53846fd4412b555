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
| early abort | -             | streams that end early, to resume  | a round's end, a      | the queue, the  |
|             |               | from their prefixes                | drop, silence, removal| fleet, a timer  |
| take        | `take`        | a batch of scored sequences        | enough ready groups   | rollout         |
| turns       | -             | answers that are abandoned         | a drop, the run's end | the queue       |
| drain       | `drain`       | servers that generate nothing      | what is in flight, for| rollout         |
|             |               |                                    | interrupt: drain      |                 |
| sleep (in   | `take`        | servers that hold no memory, for   | an evaluation; what is| rollout, the    |
| take)       |               | placement: colocated               | in flight; servers    | servers         |
| train (the  | a batch       | a new version                      | `take`; its last      | take; replies   |
| trainer's)  |               |                                    | publish               | of the servers  |

Waits for tokens, verdicts, groups, servers, publications and the disk have a name in one `Waits`, so that the
watchdog and the post-mortem can say what waits for what. Without a name are timers, single requests that have
a timeout of their own (an abort, a probe of a server), and an evaluation's turn on the evaluation servers.

`assemble` builds the parts and shows which knows which. Features act as `RunPart`s and `TakePart`s; this file
knows none of them.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from asyncrl.controller.context import RunContext
from asyncrl.controller.http_service import ControllerService
from asyncrl.controller.progress import Side, watch
from asyncrl.controller.trainer_wire import TrainerWire
from asyncrl.journal.starts import RunEnd, record_end
from asyncrl.loops import RunPart, RunTasks, now_seconds
from asyncrl.recipe import Recipe
from asyncrl.replay.group import Group
from asyncrl.replay.queue import ReplayQueue
from asyncrl.rollout.generate import Generator
from asyncrl.rollout.grade import Grader
from asyncrl.serving.fleet import Fleet
from asyncrl.tasks.order import TaskOrder

WATCH_INTERVAL_SECONDS = 5.0
"""Pause between two looks of the watchdog."""
ENDING_SECONDS = 2.0
"""From a request to stop: how long verdicts, evaluations and streams may take to end by themselves, beside
the trainer's current step and, where that ends sooner, after it. Streams are asked to end, and what is cut
off is in the journal up to that point; an evaluation that is cut off is made by the next start."""


class Completion(Protocol):
    async def run(self, group: Group) -> None:
        """Leaves the group ready or dropped."""
        ...


@dataclass(eq=False, kw_only=True)
class Controller:
    """Everything between the task file and the trainer. Async context manager; `run` once."""

    recipe: Recipe
    context: RunContext
    run_tasks: RunTasks
    queue: ReplayQueue
    order: TaskOrder
    fleet: Fleet
    added_servers: Sequence[str]
    """URLs that were added to the fleet in earlier starts."""
    generator: Generator
    grader: Grader
    completion: Completion
    wire: TrainerWire
    service: ControllerService
    parts: Sequence[RunPart]
    sides: Sequence[Side]
    _must_end_at: float = math.inf
    """As `now_seconds`, once the run was asked to stop."""

    @property
    def queue_url(self) -> str:
        return self.service.url

    async def __aenter__(self) -> "Controller":
        await self.grader.__aenter__()
        await self.service.start()
        for part in self.parts:
            await part.begin()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.service.close()
        await self.wire.close()
        await self.fleet.members.close()
        for part in self.parts:
            await part.close()
        await self.grader.__aexit__(*exception)

    def stop(self) -> None:
        """Stops after the current step; in-flight requests are aborted, their prefixes kept."""
        self._must_end_at = now_seconds() + ENDING_SECONDS
        self.context.state.stop()
        if self.context.state.is_open:
            self.run_tasks.start(self._interrupt(), "interrupt")

    async def run(self, train: Callable[[], Awaitable[None]]) -> None:
        """Runs all loops until `train` returns, then evaluates what it made. Raises what any loop raised.

        `train` starts the trainer again when it dies or is killed.
        """
        self.fleet.members.start()
        for url in self.added_servers:
            self.fleet.members.add(url)
        try:
            async with self.run_tasks as tasks:
                self.context.state.open()
                looping = [part for part in self.parts if type(part).loop is not RunPart.loop]
                watching = watch(
                    self.sides,
                    interval_seconds=WATCH_INTERVAL_SECONDS,
                    describe=self.context.waits.describe_waits,
                    also=self.grader.waits.look,
                )
                background = [
                    tasks.start(self._feed(), "feed"),
                    tasks.start(watching, "watch"),
                    *(tasks.start(part.loop(), type(part).__name__) for part in looping),
                    tasks.start(self.context.state.raise_failure(), "failure"),
                ]
                await tasks.noting_failure(train())
                self.context.state.end_training()
                if self.queue.version is not None:
                    for part in self.parts:
                        await part.after_training(self.queue.version)
                await self._record_end()
                for task in background:
                    task.cancel()
                await self._end_groups()
        finally:
            self.context.state.close()

    def describe(self) -> dict[str, str]:
        """Title -> lines, for the post-mortem: the state when the first loop failed, or now."""
        return self.run_tasks.state_at_failure or self.run_tasks.describe()

    async def _record_end(self) -> None:
        """Once nothing is missing of what the run makes; else the same command makes it."""
        end = self._end()
        if end is None or any(part.lacks(end.version) for part in self.parts):
            return
        record_end(self.queue.journal, end)
        with self.context.waits.waiting("run", "the journal's disk"):
            await self.queue.journal.barrier()
        self.context.state.finish()

    def _end(self) -> RunEnd | None:
        """Why training ended, with all of it saved; None where it was stopped before."""
        version = self.queue.version
        if version is None or self.context.state.is_cut_off:
            return None
        if version >= self.recipe.trainer.num_steps:
            return RunEnd(version=version, reason="num_steps")
        return next((end for part in self.parts if (end := part.end_reached(version)) is not None), None)

    async def _end_groups(self) -> None:
        """Waits for what still streams, is graded or evaluated; in a run that stops not for long.

        A verifier that hangs must not hold a run up that was asked to stop.
        """
        await self.context.waits.wait_until(
            lambda: self.context.state.is_stopped or self.run_tasks.are_done(),
            owner="run",
            blocker="verdicts and evaluations",
        )
        await self.run_tasks.cancel(after_seconds=max(0.0, self._must_end_at - now_seconds()))

    async def _feed(self) -> None:
        """Resumes what the journal left open, then admits tasks while bound and servers allow."""
        for group in list(self.queue.live.values()):
            if not group.advantages:
                self._start_group(group)
        while True:
            await self.context.waits.wait_until(
                self._may_admit, owner="feed", blocker="the staleness bound or room on a server"
            )
            assert self.queue.version is not None
            task = self.order.next(self.queue.num_admitted, self.queue.version)
            self._start_group(self.queue.admit(task))
            # The new group takes its place on a server before the next is admitted: in one loop turn, or in a
            # second one where its trajectories play turns, each in a task of its own.
            for _ in range(1 if self.generator.turns is None else 2):
                await asyncio.sleep(0)

    def _may_admit(self) -> bool:
        return (
            not self.context.state.is_over
            and self.queue.can_admit()
            and all(part.may_admit() for part in self.parts)
            and self._has_room()
        )

    def _has_room(self) -> bool:
        """Whether a server takes one more group; what is not generated needs none."""
        if not all(part.needs_server() for part in self.parts):
            return True
        size = self.queue.settings.num_at_admission()
        tokens = self.generator.load.tokens_of_new_group(size)
        return self.fleet.router.pick(size, tokens=tokens, is_new=True) is not None

    def _start_group(self, group: Group) -> None:
        self.run_tasks.start(self.completion.run(group), f"group {group.group_id}")

    async def _interrupt(self) -> None:
        await self.generator.interrupt(timeout_seconds=ENDING_SECONDS)
