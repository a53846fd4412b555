"""The context that parts of a controller share: waits, phase of the run, journal, the trainer's session."""

import asyncio
import contextlib
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from asyncrl.errors import QueueError, Superseded
from asyncrl.journal.writer import Journal
from asyncrl.loops import RunPhase, Waits
from asyncrl.wire.messages import TakeRequest

T = TypeVar("T")


class TrainerSession:
    """The trainer as its requests show it: which take is the newest, how many requests wait. One per run.

    Every request of the trainer is answered through it. Of two trainers that wait (one died and left its
    request) only the newest is answered.
    """

    def __init__(self, waits: Waits, state: RunPhase) -> None:
        self._waits = waits
        self._state = state
        self._newest_take: TakeRequest | None = None
        """Older requests that still wait here came from a trainer that is gone."""
        self.num_waiting = 0
        """Takes and drains: in both the trainer waits for the rollout side."""
        self.num_steps = 0
        """Steps of all trainers since this start, repeated ones too."""
        self.num_asked = 0
        """Takes and drains so far, repeated ones included."""

    def begin(self, request: TakeRequest) -> None:
        """A take has come: older ones are given up."""
        self._newest_take = request
        self._waits.notify()

    def is_newest(self, request: TakeRequest) -> bool:
        """Whether no other take came after `request`: a dead trainer's must not act along with its
        successor's."""
        return request is self._newest_take

    def check_is_newest(self, request: TakeRequest) -> None:
        """Raises Superseded."""
        if not self.is_newest(request):
            raise Superseded(
                f"The take of step {request.version + 1} was given up: another one came after it."
            )

    async def answer(self, work: Awaitable[T], wait_seconds: float) -> T | None:
        """The result of `work`; None when it takes longer than `wait_seconds`."""
        self.num_waiting += 1
        self.num_asked += 1
        try:
            with self.faults_end_run():
                try:
                    async with asyncio.timeout(wait_seconds):
                        return await work
                except TimeoutError:
                    return None
        finally:
            self.num_waiting -= 1

    @contextlib.contextmanager
    def faults_end_run(self) -> Iterator[None]:
        """A QueueError concerns the trainer alone; every other error ends the run and is told to it, too."""
        try:
            yield
        except QueueError:
            raise
        except Exception as error:
            self._state.fail(error)
            raise


@dataclass(frozen=True)
class RunContext:
    """One per run."""

    waits: Waits
    state: RunPhase
    journal: Journal
    session: TrainerSession
