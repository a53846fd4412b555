"""The tasks of a run: its loops, one per group, one per evaluation. The first that fails ends the others.

What only measures runs in the `background`.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, Self

from asyncrl.loops.waits import Waits


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
