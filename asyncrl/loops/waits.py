"""Waiting for a condition inside one event loop, with a name for every wait.

No wait is silent: `Waits.pending` tells at any time what waits for what and since when, for the watchdog and
the post-mortem. Conditions are cheap predicates; code that changes state calls `notify`.

Names are for people. Code that tells waits apart asks for the type of the owner and the kind of the blocker.
"""

import asyncio
import contextlib
import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass


class TrainersWait(enum.StrEnum):
    """Names of what holds the trainer up when it waits; all other owners have plain names."""

    TAKE = "take"
    EVALUATION = "train"
    """Training, for an evaluation before or after it."""
    PUBLISH = "the publish"


class BlockerKind(enum.Enum):
    """Blockers that code tells apart, each with its words around the subject."""

    OTHER = "{}"
    GROUPS = "groups for step {}"
    EVALUATION = "the evaluation {} training"
    VERDICT = 'its verdict by "{}"'
    AGENT = "its agent, which {}"
    TURN = "the answer to its turn by {}"


@dataclass(frozen=True, slots=True)
class Blocker:
    """The cause of a wait; as text, for people, its kind's words."""

    kind: BlockerKind
    subject: str

    def __str__(self) -> str:
        return self.kind.value.format(self.subject)


def now_seconds() -> float:
    """The running loop's monotonic clock: the one that timeouts obey, and that a simulation can drive."""
    return asyncio.get_running_loop().time()


@dataclass(frozen=True, slots=True)
class Wait:
    owner: str
    blocker: Blocker
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
        blocker: Blocker | str,
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
    def waiting(self, owner: str, blocker: Blocker | str) -> Iterator[None]:
        """Names a wait for something that is awaited directly: a stream, a verdict, a disk, a reply. Plain
        words are a blocker that no code tells from others."""
        if isinstance(blocker, str):
            blocker = Blocker(BlockerKind.OTHER, blocker)
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
