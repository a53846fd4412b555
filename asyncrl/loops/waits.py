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
    TEACHER = "its log-probs by {}"
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
        self._waits: dict[object, Wait] = {}
        self._waiters: dict[object, tuple[Callable[[], bool], asyncio.Future[None]]] = {}
        self._is_looking = False

    def notify(self) -> None:
        """Has the condition of every waiter looked at again, soon and once for several calls. To look takes
        a microsecond, to wake a waiter ten: thousands of agents wait here."""
        if not self._is_looking and self._waiters:
            self._is_looking = True
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        self._is_looking = False
        for condition, told in list(self._waiters.values()):
            if told.done():
                continue
            try:
                if condition():
                    told.set_result(None)
            except Exception as error:  # the waiter raises it
                told.set_exception(error)

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
                        await self._told(condition)
                return True
            except TimeoutError:
                return condition()

    async def _told(self, condition: Callable[[], bool]) -> None:
        """Returns once the condition was seen to hold. Raises what it raises."""
        key, told = object(), asyncio.get_running_loop().create_future()
        self._waiters[key] = condition, told
        try:
            await told
        finally:
            del self._waiters[key]

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
