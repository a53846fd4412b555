"""A SandboxPool on its own event loop in a background thread, usable from any thread and any event loop.

Owns the thread and the pool; both begin with the first use and end with `close` or the process. After a fork
the child starts its own, because a fork copies no thread."""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from sandbox.pool import SandboxPool
from sandbox.protocol import Sandbox
from sandbox.settings import SandboxSettings

T = TypeVar("T")


class SandboxService:
    """Runs coroutines that use the sandbox, where the sandbox lives."""

    def __init__(self, settings: SandboxSettings | None = None) -> None:
        self._settings = settings
        self._locks: dict[int, threading.Lock] = {}
        self._owner_pid = -1
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pool: SandboxPool | None = None

    def _started(self) -> tuple[asyncio.AbstractEventLoop, SandboxPool]:
        # One lock per process: after a fork the parent's may never be released. setdefault is atomic.
        with self._locks.setdefault(os.getpid(), threading.Lock()):
            if self._loop is None or self._pool is None or self._owner_pid != os.getpid():
                self._loop = asyncio.new_event_loop()
                self._pool = SandboxPool(self._settings)
                self._owner_pid = os.getpid()
                self._thread = threading.Thread(target=self._loop.run_forever, name="sandbox", daemon=True)
                self._thread.start()
            return self._loop, self._pool

    def submit(self, work: Callable[[Sandbox], Coroutine[Any, Any, T]]) -> "Future[T]":
        """Starts `work(sandbox)`; cancelling the future cancels it and ends its runs."""
        loop, pool = self._started()
        return asyncio.run_coroutine_threadsafe(work(pool), loop)

    def call(self, work: Callable[[Sandbox], Coroutine[Any, Any, T]]) -> T:
        """The result of `work(sandbox)`, blocking. Not for event loops."""
        return self.submit(work).result()

    async def call_async(self, work: Callable[[Sandbox], Coroutine[Any, Any, T]]) -> T:
        """The result of `work(sandbox)`, awaited from any event loop."""
        return await asyncio.wrap_future(self.submit(work))

    def close(self) -> None:
        """Ends the pool and the thread."""
        if self._loop is None or self._pool is None or self._owner_pid != os.getpid():
            return
        loop, self._loop = self._loop, None
        asyncio.run_coroutine_threadsafe(self._pool.close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        assert self._thread is not None
        self._thread.join()
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
