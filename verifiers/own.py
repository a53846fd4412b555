"""Verifiers of your own: their code may hang, sleep and die, so none of it runs in the caller's event loop.

Built in is what this package defines and what consists of nothing else; all else is yours, installed
packages included. Yours is built in a thread, asked in workers, and awaited in an event loop of its own."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from verifiers.golds import parse_gold
from verifiers.verifier import Verifier

T = TypeVar("T")


def is_built_in(verifier: object) -> bool:
    """Whether all of its code is this package's."""
    if type(verifier).__module__.partition(".")[0] != __package__:
        return False
    return all(map(is_built_in, getattr(verifier, "members", ())))


@dataclass(frozen=True, slots=True)
class Gold:
    """A row's value that is not parsed yet: in place of a reference, for a worker to parse."""

    raw: Any


def parsed(verifier: Verifier, reference: Any) -> Any:
    """The reference that `verify` takes. Raises ValueError where a gold cannot be read."""
    return parse_gold(verifier, reference.raw) if isinstance(reference, Gold) else reference


async def in_thread(work: Callable[[], T]) -> T:
    """Runs `work` in a thread; returns or raises as it does. A hung thread keeps no process alive."""
    done: Future[T] = Future()
    # From now on a caller that is canceled cannot cancel it.
    done.set_running_or_notify_cancel()

    def run() -> None:
        try:
            done.set_result(work())
        except StopIteration as error:  # that no task can be handed: its caller would wait without end
            done.set_exception(RuntimeError(f"StopIteration: {error}"))
        except BaseException as error:  # handed to the caller, whatever it is
            done.set_exception(error)

    threading.Thread(target=run, name="verifier", daemon=True).start()
    return await asyncio.wrap_future(done)


class OwnLoop:
    """An event loop in a thread, for coroutines that might block theirs. Started when first used."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Awaits `work` in that loop; returns or raises as it does. Raises RuntimeError once it is closed."""
        if self._loop is None:
            started = threading.Event()
            threading.Thread(
                target=asyncio.run, args=(self._serve(started),), name="verifiers that wait", daemon=True
            ).start()
            # A few milliseconds: nothing of a verifier's runs in it yet.
            started.wait()
        current = asyncio.current_task()
        assert self._loop is not None and current is not None
        awaited = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return await asyncio.wrap_future(awaited)
        except asyncio.CancelledError:
            # Canceled there, not here: the caller has an answer due.
            if self._loop is None and not current.cancelling():
                raise RuntimeError("the pool is closed") from None
            raise

    def close(self) -> None:
        """Ends it; what is still awaited is canceled. Does not wait: a verifier may block it."""
        loop, self._loop = self._loop, None
        if loop is not None and self._end is not None:
            loop.call_soon_threadsafe(self._end.set)

    async def _serve(self, started: threading.Event) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        started.set()
        await self._end.wait()
