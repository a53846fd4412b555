"""The watchdog of a run, which warns, then acts, then stops the run, and the two sides that it watches: the
rollout side and the trainer. No silence is without a deadline.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from asyncrl.controller.context import TrainerSession
from asyncrl.errors import AsyncrlError
from asyncrl.evaluation.schedule import HeldOutSchedule
from asyncrl.journal.connection import GENERATED
from asyncrl.loops import RunPhase, Waits, now_seconds
from asyncrl.recipe import Recipe
from asyncrl.replay.queue import ReplayQueue
from asyncrl.rollout.agents.player import AgentPlayer
from asyncrl.rollout.teacher import Teacher
from asyncrl.rollout.turn_player import TurnPlayer
from asyncrl.serving.fleet import Fleet
from asyncrl.serving.server_process import ProcessOwner

log = logging.getLogger(__name__)


class Stalled(AsyncrlError):
    """Nothing moved, and what could be done about it did not help. The message says what waits for what."""


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Deadlines of one silence."""

    warn_seconds: float
    act_seconds: float
    stop_seconds: float


class Side(Protocol):
    """A side of a run, which must move while it is due."""

    what: str
    """Meaning of a silence."""
    knob: str
    """The recipe key behind the deadlines."""
    deadlines: Deadlines

    def is_due(self) -> bool: ...

    def progress(self) -> Any:
        """Compared with what it was: a difference is a move."""
        ...

    def act(self, why: str) -> None:
        """Called once per silence when the warning did not help."""
        ...


@dataclass(slots=True)
class Watch:
    """How long one side has been silent. Whatever moves sets it back."""

    side: Side
    _state: Any = None
    _since_seconds: float = field(default_factory=now_seconds)
    _num_steps: int = 0

    def check(self, describe: Callable[[], str]) -> None:
        """Raises Stalled when the last deadline is passed."""
        side, deadlines = self.side, self.side.deadlines
        now, state = now_seconds(), side.progress()
        if state != self._state or not side.is_due():
            self._state, self._since_seconds, self._num_steps = state, now, 0
            return
        silence = now - self._since_seconds
        words = f"Nothing moved for {silence:.0f} s ({side.knob}): {side.what}.\n{describe()}"
        if silence > deadlines.stop_seconds:
            raise Stalled(words)
        if silence > deadlines.act_seconds and self._num_steps < 2:
            self._num_steps = 2
            log.warning("%s", words)
            side.act(f"nothing moved for {silence:.0f} s")
        elif silence > deadlines.warn_seconds and self._num_steps < 1:
            self._num_steps = 1
            log.warning("%s", words)


async def watch(
    sides: Sequence[Side],
    *,
    interval_seconds: float,
    describe: Callable[[], str],
    also: Callable[[], None] | None = None,
) -> None:
    """Looks at all sides every `interval_seconds`, without end; `describe` says what waits for what,
    `also` is called each time.

    Raises Stalled.
    """
    watches = [Watch(side) for side in sides]
    while True:
        await asyncio.sleep(interval_seconds)
        for one in watches:
            one.check(describe)
        if also is not None:
            also()


class Supervisor(ProcessOwner, Protocol):
    """Starts and ends processes on the controller's word."""

    def kill_trainer(self, why: str) -> None:
        """Kills a trainer that hangs; `train` (see `Controller.run`) then starts another one."""
        ...

    def record_server_change(self, action: str, url: str) -> None:
        """Remembers "add" or "remove" for later starts of the run."""
        ...


def change_servers(fleet: Fleet, supervisor: Supervisor, action: str, url: str) -> list[dict[str, Any]]:
    """A person asks to "add" or "remove" the rollout server at `url`, or only to "list" them. Returns what is
    known of each. Raises ServerError."""
    rows = fleet.members.change_and_list(action, url)
    if action != "list":
        supervisor.record_server_change(action, url)
    return rows


def describe_run(queue: ReplayQueue, fleet: Fleet, waits: Waits) -> dict[str, str]:
    """Title -> lines: what waits for what, the servers, the groups, the tokens."""
    groups = [
        f"  {group.group_id}: {group.state.value}, admitted at version {group.admitted_version}, "
        f"{sum(t.finish is not None for t in group.trajectories)} of {len(group.trajectories)} ended, "
        f"{len(group.scores)} verdicts, {group.num_tokens()} tokens"
        for group in queue.live.values()
    ]
    servers = [
        f"  {server.url}: {server.state.value}, version {server.version}, {server.num_running} requests, "
        f"{server.num_restarts} restarts{f', {server.reason}' if server.reason else ''}"
        for server in fleet.members.servers.values()
    ]
    tokens = [f"  {name}: {count}" for name, count in queue.conservation().items()]
    return {
        "What waited for what": waits.describe_waits(),
        "Servers": "\n".join(servers),
        f"Groups in the queue (trainer at version {queue.version})": "\n".join(groups),
        "Tokens": "\n".join(tokens),
    }


MAX_TRAINER_KILLS = 3
"""Most hung trainers killed in a run; the next one that hangs ends it."""


class RolloutSide:
    """Must move while the trainer waits for a batch and no tool has time left."""

    what = "no token, verdict, answer or server, while the trainer waits for a batch"
    knob = "serving.request_timeout_seconds"

    def __init__(
        self,
        recipe: Recipe,
        queue: ReplayQueue,
        fleet: Fleet,
        heldout: HeldOutSchedule,
        session: TrainerSession,
        answers: TurnPlayer | AgentPlayer | None = None,
        teacher: Teacher | None = None,
    ) -> None:
        """`answers` where trajectories have turns, `teacher` where one scores them."""
        self._answers = answers
        self._teacher = teacher
        self._queue = queue
        self._fleet = fleet
        self._heldout = heldout
        self._session = session
        limit = recipe.serving.request_timeout_seconds
        self.deadlines = Deadlines(
            warn_seconds=0.5 * limit,
            # Later than the limit of a single stream, which is the more precise remedy.
            act_seconds=1.5 * limit,
            stop_seconds=2.0 * limit + recipe.serving.start_timeout_seconds,
        )

    def is_due(self) -> bool:
        # A tool is no server: it has limits of its own, and is silent until they are passed.
        is_in_time = self._answers is not None and self._answers.is_answering_in_time()
        is_in_time = is_in_time or self._heldout.is_answering_in_time()
        return self._session.num_waiting > 0 and not is_in_time

    def progress(self) -> Any:
        """Raises AsyncrlError when every server was given up: nothing will move."""
        verdicts = sum(len(group.scores) for group in self._queue.live.values())
        servers = [(s.state, s.is_asleep, s.num_restarts) for s in self._fleet.members.servers.values()]
        if self._fleet.members.servers and not self._fleet.members.has_hope():
            reasons = "; ".join(f"{s.url}: {s.reason}" for s in self._fleet.members.servers.values())
            raise AsyncrlError(f"No rollout server is left. {reasons}")
        # A group that is dropped because its servers fail is no progress.
        tokens = self._queue.counters.get(GENERATED, 0), self._heldout.num_tokens
        num_answered = 0 if self._answers is None else self._answers.num_answered()
        scored = None if self._teacher is None else self._teacher.progress()
        moved = tokens, num_answered, verdicts, scored
        return moved, self._queue.num_steps_taken, self._queue.version, servers

    def act(self, why: str) -> None:
        self._fleet.members.restart_stuck(why)


class TrainerSide:
    """Must come back while it has a batch."""

    what = "the trainer has a batch and did not come back"
    knob = "trainer.step_timeout_seconds"

    def __init__(
        self, recipe: Recipe, session: TrainerSession, state: RunPhase, supervisor: Supervisor
    ) -> None:
        self._session = session
        self._state = state
        self._supervisor = supervisor
        self._num_kills = 0
        limit = recipe.trainer.step_timeout_seconds
        self.deadlines = Deadlines(warn_seconds=0.5 * limit, act_seconds=limit, stop_seconds=2.0 * limit)

    def is_due(self) -> bool:
        return self._session.num_waiting == 0 and self._state.is_training

    def progress(self) -> Any:
        # A trainer that was killed and restarted has its own time, a few times.
        return self._session.num_asked, min(self._num_kills, MAX_TRAINER_KILLS)

    def act(self, why: str) -> None:
        self._num_kills += 1
        self._supervisor.kill_trainer(why)
