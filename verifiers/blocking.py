"""VerifierPool for threads: the same calls, waiting. Owns an event loop in a thread of its own."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from verifiers.pool import VerifierPool
from verifiers.task import Task
from verifiers.verdict import Verdict

T = TypeVar("T")


class BlockingVerifierPool:
    """Takes VerifierPool's arguments. May be used from any number of threads at once."""

    def __init__(self, num_workers: int = 1, timeout_seconds: float = 2.0, **limits: Any) -> None:
        self._pool = VerifierPool(num_workers, timeout_seconds, **limits)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="verifier pool", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._run(self._pool.start())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._run(self._pool.close())
        finally:
            self._stop()

    def verify(
        self,
        verifier_name: str,
        options: Mapping[str, object],
        response: str,
        reference: Any,
        *,
        folder: Path | None = None,
        task: Callable[[], Task] = Task,
    ) -> Verdict:
        return self._run(
            self._pool.verify(verifier_name, options, response, reference, folder=folder, task=task)
        )

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
