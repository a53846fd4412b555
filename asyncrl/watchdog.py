"""The watchdog: no silence without a deadline. It warns, then acts, then stops the run.

A watch has an owner who holds things up while nothing moves, and three limits. Whatever moves sets it back.
It knows nothing of servers or trainers: `act` does what may heal, `describe` says who waits for whom.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from asyncrl.errors import AsyncrlError
from asyncrl.waits import now_seconds

log = logging.getLogger(__name__)


class Stalled(AsyncrlError):
    """Nothing moved, and what could be done about it did not help. The message says who waits for whom."""


@dataclass(slots=True)
class Watch:
    """One thing that must move while `is_due`: its state is compared with what it was."""

    what: str
    knob: str
    """The recipe key behind the limits."""
    is_due: Callable[[], bool]
    progress: Callable[[], Any]
    act: Callable[[str], None]
    """Called once per silence, with the reason, when warning did not help."""
    warn_seconds: float
    act_seconds: float
    stop_seconds: float
    _state: Any = None
    _since_seconds: float = field(default_factory=now_seconds)
    _num_steps: int = 0

    def check(self, describe: Callable[[], str], note: Callable[[str], None]) -> None:
        """Raises Stalled when the last limit is passed."""
        now, state = now_seconds(), self.progress()
        if state != self._state or not self.is_due():
            self._state, self._since_seconds, self._num_steps = state, now, 0
            return
        silence = now - self._since_seconds
        words = f"Nothing moved for {silence:.0f} s ({self.knob}): {self.what}.\n{describe()}"
        if silence > self.stop_seconds:
            raise Stalled(words)
        if silence > self.act_seconds and self._num_steps < 2:
            self._num_steps = 2
            note(words)
            self.act(f"nothing moved for {silence:.0f} s")
        elif silence > self.warn_seconds and self._num_steps < 1:
            self._num_steps = 1
            note(words)


async def watch(
    watches: list[Watch],
    *,
    interval_seconds: float,
    describe: Callable[[], str],
    note: Callable[[str], None],
) -> None:
    """Looks at all watches every `interval_seconds`, without end. Raises Stalled."""
    while True:
        await asyncio.sleep(interval_seconds)
        for one in watches:
            one.check(describe, note)
