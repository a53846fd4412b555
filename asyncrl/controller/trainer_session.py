"""The trainer as its requests show it: which take is the newest, how many requests wait, how often it asked.

Of two trainers that wait (one died and left its request) only the newest is answered.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Iterator
from typing import TypeVar

from asyncrl.errors import QueueError, Superseded
from asyncrl.loops.run_phase import RunPhase
from asyncrl.loops.waits import Waits
from asyncrl.wire.messages import TakeRequest

T = TypeVar("T")


class TrainerSession:
    """One per run. Every request of the trainer is answered through it."""

    def __init__(self, waits: Waits, state: RunPhase) -> None:
        self._waits = waits
        self._state = state
        self._newest_take: TakeRequest | None = None
        """Older requests that still wait here came from a trainer that is gone."""
        self.num_waiting = 0
        """Takes and drains: in both the trainer waits for the rollout side."""
        self.num_asked = 0
        """Takes and drains so far, repeated ones included."""

    def begin(self, request: TakeRequest) -> None:
        """A take has come: older ones are given up."""
        self._newest_take = request
        self._waits.notify()

    def is_newest(self, request: TakeRequest) -> bool:
        """A trainer that died leaves its request waiting here; it must not act along with its successor's."""
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
        """Only a QueueError is the trainer's own matter; it is told of every other error, too."""
        try:
            yield
        except QueueError:
            raise
        except Exception as error:
            self._state.fail(error)
            raise
