"""Waiting for a condition inside one event loop, with a name for every wait.

No wait is silent: `Waits.pending` tells at any time what waits for what and since when, for the watchdog and
the post-mortem. Conditions are cheap predicates; code that changes state calls `notify`.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

VERDICT_BY = "its verdict by"
"""Begins the blocker of a trajectory that waits for its verifier, whose name follows."""


def now_seconds() -> float:
    """The running loop's monotonic clock: the one that timeouts obey, and that a simulation can drive."""
    return asyncio.get_running_loop().time()


@dataclass(frozen=True, slots=True)
class Wait:
    owner: str
    blocker: str
    since_seconds: float
    """As `now_seconds`."""


class Waits:
    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._waits: dict[object, Wait] = {}

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
        with self.waiting(owner, blocker):
            try:
                async with asyncio.timeout(timeout_seconds):
                    while not condition():
                        await self._event.wait()
                return True
            except TimeoutError:
                return condition()

    @contextlib.contextmanager
    def waiting(self, owner: str, blocker: str) -> Iterator[None]:
        """Names a wait for something that is awaited directly: a stream, a verdict, a disk, a reply."""
        # A key of its own, because two waits may have the same words.
        key = object()
        self._waits[key] = Wait(owner, blocker, now_seconds())
        try:
            yield
        finally:
            del self._waits[key]

    @property
    def pending(self) -> list[Wait]:
        """Current waits, the longest first."""
        return sorted(self._waits.values(), key=lambda wait: wait.since_seconds)

    def describe_waits(self) -> str:
        """One line per wait."""
        now = now_seconds()
        return "\n".join(
            f"  {wait.owner} waits for {wait.blocker} since {now - wait.since_seconds:.0f} s"
            for wait in self.pending
        )
