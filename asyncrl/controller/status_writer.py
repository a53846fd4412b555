"""Keeps status.json of a running run up to date: a loop next to the controller's own.

Nothing depends on it. A disk that refuses costs the run one warning; one that hangs holds up a thread, which
only this loop waits for.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import NamedTuple

from asyncrl.journal.connection import DROPPED, GENERATED, TRAINED
from asyncrl.loops import BlockerKind, RunPhase, TrainersWait, Wait, Waits, now_seconds
from asyncrl.replay.group import GroupState
from asyncrl.replay.queue import ReplayQueue
from asyncrl.run.status import (
    QueueStatus,
    ServerStatus,
    State,
    Status,
    this_host,
    write_status,
)
from asyncrl.serving.fleet import Fleet
from asyncrl.serving.server import Server

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 1.0
WINDOW_SECONDS = 10.0
"""Window over which speeds are means: a single second says more about the size of a chunk."""
LAST_SECONDS = 2.0
"""For a write that hangs, before the last status is given up."""


class _Reading(NamedTuple):
    """Meters of the servers at one moment."""

    seconds: float
    tokens: dict[str, int]
    busy_seconds: dict[str, float]


class StatusWriter:
    """One per start of a run. `running` is the loop."""

    def __init__(
        self,
        folder: Path,
        *,
        version: int,
        total_steps: int,
        queue: ReplayQueue,
        fleet: Fleet,
        waits: Waits,
        state: RunPhase,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`version` is where the run resumes: the trainer says its own once it asks for a batch."""
        self._folder = folder
        self._version = version
        self._total_steps = total_steps
        self._queue = queue
        self._fleet = fleet
        self._waits = waits
        self._state = state
        self._wall_clock = wall_clock
        self._readings: deque[_Reading] = deque()
        self._is_refused = False

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Writes about once a second; at the end of the block, once more: stopped, failed or finished."""
        loop = asyncio.create_task(self._run(), name="status")
        try:
            yield
        except asyncio.CancelledError:
            await self._end(loop, "stopped")
            raise
        except BaseException:
            await self._end(loop, "failed")
            raise
        else:
            await self._end(loop, "finished" if self._state.is_finished else "stopped")

    def status(self, state: State | None = None) -> Status:
        """Status of this moment; `state` where the run has ended."""
        version, waits = self._queue.version, [] if state else self._waits.pending
        return {
            "time_seconds": round(self._wall_clock(), 3),
            "state": state or self._state_now(waits),
            "pid": os.getpid(),
            "host": this_host(),
            "step": self._version if version is None else version,
            "total_steps": self._total_steps,
            "waiting": {
                "trainer": None if state else self._trainer_waits(waits),
                "rollouts": None if state else self._rollouts_wait(waits),
            },
            "queue": self._queue_status(),
            "servers": self._servers(),
        }

    async def _run(self) -> None:
        while True:
            await self._write(self.status())
            await asyncio.sleep(INTERVAL_SECONDS)

    async def _end(self, loop: "asyncio.Task[None]", state: State) -> None:
        loop.cancel()
        # Its thread may be at a write: that must not come after the last one.
        with contextlib.suppress(asyncio.CancelledError, TimeoutError):
            await asyncio.wait_for(loop, LAST_SECONDS)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._write(self.status(state)), LAST_SECONDS)

    async def _write(self, status: Status) -> None:
        writing = asyncio.create_task(asyncio.to_thread(write_status, self._folder, status))
        try:
            # Cancelled, it still waits for its thread: a later status must not be overtaken.
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            with contextlib.suppress(OSError):
                await writing
            raise
        except OSError as error:
            if not self._is_refused:
                self._is_refused = True
                log.warning(
                    "status.json under %s could not be written: %s. The run does not need it; until there is "
                    "room, `asyncrl status` shows what was last written.",
                    self._folder,
                    error.strerror,
                )

    def _state_now(self, waits: list[Wait]) -> State:
        if not self._state.is_open:
            return "starting"
        is_held_up = any(wait.blocker.kind is BlockerKind.EVALUATION for wait in waits)
        return "evaluating" if is_held_up else "training"

    def _queue_status(self) -> QueueStatus:
        queue = self._queue
        states = Counter(group.state for group in queue.live.values())
        taken = sum(queue.taken_tokens.values())
        # By the books, since a sum over every segment in flight would cost milliseconds at size.
        settled = sum(
            count for name, count in queue.counters.items() if name.startswith(DROPPED)
        ) + queue.counters.get(TRAINED, 0)
        return {
            "open": states[GroupState.OPEN],
            "ready": states[GroupState.READY],
            "taken": len(queue.taken_tokens) * queue.settings.groups_per_batch,
            "tokens_in_flight": queue.counters.get(GENERATED, 0) - settled - taken,
        }

    def _trainer_waits(self, waits: list[Wait]) -> str | None:
        """By the waits of its requests: it waits in a take, in a drain, and for an evaluation."""
        if self._state.is_open and not self._state.is_training:
            return None
        own = [wait for wait in waits if isinstance(wait.owner, TrainersWait)]
        if not own:
            return None
        # Of a trainer that died, a request may still wait here: the newest one counts.
        blocker = max(own, key=lambda wait: wait.since_seconds).blocker
        if blocker.kind is not BlockerKind.GROUPS:
            return f"for {blocker}"
        ready = sum(group.state is GroupState.READY for group in self._queue.live.values())
        batch = self._queue.settings.groups_per_batch
        if ready >= batch:
            # Another batch would leave some of the open ones behind until they are too stale.
            return f"for rollouts: {ready} groups ready, older ones are due first"
        dropped = self._queue.num_dropped - self._queue.num_dropped_at_take
        lost = f", {dropped:,} dropped since the last batch" if dropped else ""
        return f"for rollouts: {ready} of {batch} groups ready{lost}"

    def _rollouts_wait(self, waits: list[Wait]) -> str | None:
        """None while a server generates, or when nothing is left to generate."""
        if not self._state.is_open or self._state.is_over or self._fleet.router.num_in_flight:
            return None
        if not self._fleet.members.serving():
            states = Counter(server.state.value for server in self._fleet.members.servers.values())
            return "for a server: " + ", ".join(f"{count} {name}" for name, count in states.items())
        if any(group.state is GroupState.OPEN for group in self._queue.live.values()):
            return _answers_wait(waits)
        if self._queue.version is None:
            return "for the trainer to start"
        if not self._queue.can_admit():
            return (
                f"for the trainer: {len(self._queue.live)} groups ready, rollout.max_staleness admits no more"
            )
        return None

    def _servers(self) -> list[ServerStatus]:
        servers = list(self._fleet.members.servers.values())
        now = _Reading(
            now_seconds(),
            {server.url: server.num_tokens for server in servers},
            {server.url: server.busy_so_far() for server in servers},
        )
        while len(self._readings) > 1 and now.seconds - self._readings[1].seconds >= WINDOW_SECONDS:
            self._readings.popleft()
        self._readings.append(now)
        return [_row(server, self._readings[0], now) for server in servers]


_ANSWERS = {
    BlockerKind.TURN: "answers to turns",
    BlockerKind.AGENT: "agents",
    BlockerKind.VERDICT: "verdicts",
    BlockerKind.TEACHER: "log-probs",
}


def _answers_wait(waits: list[Wait]) -> str | None:
    """`waits`: the longest first. Those for answers to turns, agents and verdicts; None without any."""
    found = []
    for kind, what in _ANSWERS.items():
        own = [wait for wait in waits if wait.blocker.kind is kind]
        if own:
            subjects = {wait.blocker.subject for wait in own}
            names = sorted(f'"{name}"' for name in subjects) if what == "verdicts" else sorted(subjects)
            seconds = now_seconds() - own[0].since_seconds
            by = "" if kind is BlockerKind.AGENT else f" by {', '.join(names)}"
            found.append(f"{len(own)} {what}{by}: {seconds:.0f} s")
    return f"for {', and '.join(found)}" if found else None


def _row(server: Server, before: _Reading, now: _Reading) -> ServerStatus:
    url = server.url
    seconds = max(now.seconds - before.seconds, 1e-9)
    # A server that was removed and added counts from 0 again.
    tokens = max(0, now.tokens[url] - before.tokens.get(url, 0))
    busy = max(0.0, now.busy_seconds[url] - before.busy_seconds.get(url, 0.0))
    return {
        "url": url,
        "state": server.state.value,
        "version": server.version,
        "requests": server.num_running,
        "tokens_per_second": round(tokens / seconds, 1),
        "restarts": server.num_process_restarts,
        "retractions": server.num_retractions,
        "busy_share": round(min(1.0, busy / seconds), 3),
    }
