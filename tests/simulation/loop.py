"""An event loop with a driven clock: time stands still while anything can run and jumps when nothing can.

No sockets, no threads, no sleeping. What is ready at the same moment runs in an order drawn from the seed, so
that a schedule covers interleavings that a wall clock would almost never show, and shows them again.
"""

import asyncio
import random
from typing import Any

MAX_TURNS = 400_000
"""A schedule that turns longer than this without an end is a livelock."""


class Livelock(AssertionError):
    """The loop turned MAX_TURNS times and the run did not end."""


class Deadlock(AssertionError):
    """Nothing can run and no timer is set: whoever waits would never wake."""


class DrivenLoop(asyncio.BaseEventLoop):
    """`now` starts at 0 and moves only when every task waits for time."""

    def __init__(self, order: random.Random) -> None:
        super().__init__()
        self.now = 0.0
        self.num_turns = 0
        self._order = order
        self._selector = self
        self._clock_resolution = 1e-9
        self.set_exception_handler(self._remember)
        self.errors: list[dict[str, Any]] = []

    def time(self) -> float:
        return self.now

    def select(self, timeout: float | None) -> list[Any]:
        """What BaseEventLoop asks its selector: here the moment to move the clock or shuffle."""
        self.num_turns += 1
        if self.num_turns > MAX_TURNS:
            raise Livelock(f"{MAX_TURNS} turns, {self.now:.1f} s of the driven clock")
        if timeout is None:
            raise Deadlock("nothing is ready and no timer is set")
        if timeout > 0:
            self.now = self._scheduled[0]._when
        elif len(self._ready) > 1:
            self._order.shuffle(self._ready)
        return []

    def _process_events(self, event_list: list[Any]) -> None:
        assert not event_list

    def _write_to_self(self) -> None:
        """Nobody else's thread has to be woken."""

    def _remember(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.errors.append(context)
