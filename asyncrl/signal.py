"""Waiting for a condition inside one event loop, with a name for every wait.

No wait is silent: `Signal.waits` tells at any time who waits for what and since when, for the watchdog and
the post-mortem. Conditions are cheap predicates; whoever changes state calls `notify`.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Wait:
    owner: str
    blocker: str
    since_seconds: float
    """Monotonic clock."""


class Signal:
    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.waits: set[Wait] = set()

    def notify(self) -> None:
        """Lets every waiter look at its condition again."""
        self._event.set()
        self._event = asyncio.Event()

    async def wait_until(
        self,
        condition: Callable[[], bool],
        *,
        owner: str,
        blocker: str,
        timeout_seconds: float | None = None,
    ) -> bool:
        """True once the condition holds; False when `timeout_seconds` passed first."""
        if condition():
            return True
        wait = Wait(owner, blocker, time.monotonic())
        self.waits.add(wait)
        try:
            async with asyncio.timeout(timeout_seconds):
                while not condition():
                    await self._event.wait()
            return True
        except TimeoutError:
            return condition()
        finally:
            self.waits.discard(wait)
