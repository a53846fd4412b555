"""The watchdog: no silence without a deadline. It warns, then acts, then stops the run.

It knows nothing of servers or trainers: what it watches says whether it moved and does what may heal it.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from asyncrl.errors import AsyncrlError
from asyncrl.loops.waits import now_seconds

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
