"""How a run is asked to stop, and its last resort: after LAST_SECONDS its process ends, whatever it does.

An orderly end takes less. But a verifier may hold the event loop, a server may ignore SIGTERM, a disk may
hang: what is in the journal is safe at any moment, and the kernel ends every child with this process.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable

log = logging.getLogger(__name__)

LAST_SECONDS = 9.0
INTERRUPTED = 130
"""Exit code of a run that was stopped."""


class LastResort:
    """Context manager of a run from its start to its report."""

    def __init__(self, seconds: float = LAST_SECONDS) -> None:
        self._seconds = seconds
        self._timer: threading.Timer | None = None

    def watch(self, *numbers: signal.Signals) -> None:
        """The first of these signals starts the clock. Call it after the event loop's own handlers are set.

        The loop is woken by a file descriptor and answers when it can; a handler of Python's own runs also
        while the main thread is held by code that never returns to the loop.
        """
        for number in numbers:
            signal.signal(number, lambda *_: self._begin())

    def _begin(self) -> None:
        if self._timer is None:
            self._timer = threading.Timer(self._seconds, self._end)
            self._timer.daemon = True
            self._timer.start()

    def _end(self) -> None:
        words = (
            f"not everything ended within {self._seconds:g} s: the rest is killed. What the journal holds is "
            f"safe; the same command resumes.\n"
        )
        os.write(sys.stderr.fileno(), words.encode())
        os._exit(INTERRUPTED)

    def __enter__(self) -> "LastResort":
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()


@contextlib.asynccontextmanager
async def stop_on_signals(
    stop: Callable[[], None], last_resort: LastResort, *, step_seconds: float
) -> AsyncIterator[asyncio.Event]:
    """SIGINT, SIGTERM and SIGHUP call `stop` and set the event; a second one cancels the current task.

    `step_seconds` is how long the current step may still take, for the message. A SIGHUP that `nohup` ignores
    stays ignored.
    """
    stopped, loop = asyncio.Event(), asyncio.get_running_loop()
    main_task = asyncio.current_task()
    assert main_task is not None

    def on_signal() -> None:
        if stopped.is_set():
            main_task.cancel()
            return
        stopped.set()
        log.warning(
            "stopping after the current step if it ends within %g s, else it is repeated on resume; press "
            "again to stop at once",
            step_seconds,
        )
        stop()

    numbers = [signal.SIGINT, signal.SIGTERM]
    numbers += [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN else []
    for number in numbers:
        loop.add_signal_handler(number, on_signal)
    last_resort.watch(*numbers)
    try:
        yield stopped
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
