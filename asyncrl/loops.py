"""Parts that the loops of a run share: waits that have names, tasks that end together, the phase of the run,
and the seam at which features act beside the controller's loops (`RunPart`).

No wait is silent: `Waits.pending` tells at any time what waits for what and since when, for the watchdog and
the post-mortem. Conditions are cheap predicates; code that changes state calls `notify`. Names are for
people: code that tells waits apart asks for the type of the owner and the kind of the blocker.
"""

import asyncio
import contextlib
import enum
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from asyncrl.journal.starts import RunEnd
from asyncrl.records import PolicyVersion


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


class RunTasks:
    """Async context manager around one task group."""

    def __init__(self, waits: Waits, describe: Callable[[], dict[str, str]]) -> None:
        """`describe` tells the state of the run, for the post-mortem."""
        self._waits = waits
        self.describe = describe
        self._group = asyncio.TaskGroup()
        self._tasks: set[asyncio.Task[None]] = set()
        self.state_at_failure: dict[str, str] | None = None
        """Answer of `describe` when the first task failed."""

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._group.__aexit__(kind, error, trace)

    def start(self, work: Coroutine[Any, Any, None], name: str) -> "asyncio.Task[None]":
        """Runs `work` in a task that must end before the run does."""
        task = self._group.create_task(self.noting_failure(work), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    async def noting_failure(self, work: Awaitable[None]) -> None:
        """`work`; when it fails, the state of that moment is kept, before the other tasks are cancelled."""
        try:
            await work
        except Exception:
            self.state_at_failure = self.state_at_failure or self.describe()
            raise

    def are_done(self) -> bool:
        return not self._tasks

    async def cancel(self, *, after_seconds: float) -> None:
        """Cancels what still runs after that time."""
        left = list(self._tasks)
        if left:
            await asyncio.wait(left, timeout=after_seconds)
        for task in left:
            task.cancel()

    def _forget(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not self._tasks:
            self._waits.notify()


@contextlib.asynccontextmanager
async def background(work: Coroutine[Any, Any, None], name: str) -> AsyncIterator[None]:
    """Runs `work` beside the block, and cancels and awaits it at its end. Raises then what it failed with."""
    task = asyncio.create_task(work, name=name)
    try:
        yield
    finally:
        await end_tasks(task)
        if not task.cancelled():
            task.result()


async def end_tasks(*tasks: "asyncio.Task[Any]") -> None:
    """Cancels tasks and waits until they have ended: one that was only cancelled may still run when its
    event loop closes. A cancelled caller stops waiting. What a task failed with stays in it."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


class RunPart:
    """A feature that acts while a run lasts; it overrides what it needs. `assemble` lists those of a run,
    which act in that order."""

    async def begin(self) -> None:
        """The controller's service listens, and no loop runs yet."""

    async def loop(self) -> None:
        """Runs beside the controller's loops, which cancel it when the run ends."""

    def may_admit(self) -> bool:
        """Whether the queue may get another group now."""
        return True

    def needs_server(self) -> bool:
        """Whether the next group is generated."""
        return True

    async def after_training(self, version: PolicyVersion) -> None:
        """The trainer has ended, at `version`. Returns once the part has made what it makes of that."""

    def end_reached(self, version: PolicyVersion) -> RunEnd | None:
        """Why training ended before its last step, where the part ended it."""
        return None

    def lacks(self, version: PolicyVersion) -> bool:
        """Whether the same command would make something of the last version that is not there yet."""
        return False

    async def close(self) -> None:
        """No loop runs any more."""


class RunPhase:
    """One per run. Every part reads it; only its own methods write it, and each of them wakes all waits.

    A run opens, is over (no more batches), ends (no more streams), closes. `stop` does the middle two.
    """

    def __init__(self, waits: Waits) -> None:
        self._waits = waits
        self._loop = asyncio.get_running_loop()
        self._has_failed = asyncio.Event()
        self._failure: Exception | None = None
        self.is_open = False
        """The loops run and the trainer is answered."""
        self.is_training = False
        """The trainer lives or is being restarted."""
        self.is_over = False
        """The trainer gets no further batch, and no task is admitted."""
        self.is_ending = False
        """No stream starts; unfinished groups stay open in the journal."""
        self.is_stopped = False
        """The run was asked to stop before its end."""
        self.is_cut_off = False
        """The trainer was ended before it had saved and exported its last version."""
        self.is_finished = False
        """All that the run makes is there, and the journal says so."""
        self.is_held = False
        """No stream starts: the trainer went back to an older version, which is not announced yet."""

    def open(self) -> None:
        """The loops start."""
        self.is_open = self.is_training = True
        self._waits.notify()

    def end_batches(self) -> None:
        """The last step is done, or held-out accuracy has reached its target."""
        self.is_over = True
        self._waits.notify()

    def end_rollouts(self) -> None:
        """The last step is trained: nothing is left to generate but evaluations."""
        self.is_over = self.is_ending = True
        self._waits.notify()

    def resume_rollouts(self) -> None:
        """A trainer asks for a batch that there is to be; one that died after the last step begins before
        it."""
        if self.is_over and not self.is_stopped:
            self.is_over = self.is_ending = False
            self._waits.notify()

    def end_training(self) -> None:
        """The trainer has ended well."""
        self.is_training = False
        self.is_over = self.is_ending = True
        self._waits.notify()

    def cut_off(self) -> None:
        """The trainer ends before it has saved."""
        self.is_cut_off = True

    def finish(self) -> None:
        self.is_finished = True

    def stop(self) -> None:
        """The run is asked to stop."""
        self.is_stopped = self.is_over = self.is_ending = True
        self._waits.notify()

    def close(self) -> None:
        """The loops have ended."""
        self.is_open = False
        self._waits.notify()

    def hold_streams(self) -> None:
        self.is_held = True
        self._waits.notify()

    def release_streams(self) -> None:
        self.is_held = False
        self._waits.notify()

    def fail(self, error: Exception) -> None:
        """Ends the run with `error`, which came up outside its loops; the first one counts."""
        self._failure = self._failure or error
        self._has_failed.set()

    def fail_from_thread(self, error: Exception) -> None:
        """`fail`, from any thread. Does nothing once the event loop is closed."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.fail, error)

    async def raise_failure(self) -> None:
        """Waits for `fail` and raises its error."""
        await self._has_failed.wait()
        assert self._failure is not None
        raise self._failure
