"""How a run is asked to stop, and its last resort: some seconds later its process ends, whatever it does.

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

ENDING_SECONDS = 5.0
"""For all that comes after the trainer has ended or was killed."""
INTERRUPTED = 130
"""Exit code of a run that was stopped."""


class LastResort:
    """Context manager of a run from its start to its report, which end `seconds` after the first signal."""

    def __init__(self, seconds: float, *, hurried_seconds: float = ENDING_SECONDS) -> None:
        """After a second signal `hurried_seconds` are left."""
        self._seconds, self._hurried_seconds = seconds, min(seconds, hurried_seconds)
        self._timer: threading.Timer | None = None
        self._is_hurried = False

    def watch(self, *numbers: signal.Signals) -> None:
        """The first of these signals starts the clock, the second shortens it.

        Call it after the event loop's own handlers are set. The loop is woken by a file descriptor and
        answers when it can; a handler of Python's own runs also while the main thread is held by code that
        never returns to the loop.
        """
        for number in numbers:
            signal.signal(number, lambda *_: self._begin())

    def _begin(self) -> None:
        if self._timer is None:
            self._start(self._seconds)
        elif not self._is_hurried:
            self._is_hurried = True
            self._timer.cancel()
            self._start(self._hurried_seconds)

    def _start(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self._end, (seconds,))
        self._timer.daemon = True
        self._timer.start()

    def _end(self, seconds: float) -> None:
        words = (
            f"not everything ended within {seconds:g} s: the rest is killed. What the journal holds is "
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
            "stopping: the current step and its checkpoint have %g s (trainer.stop_timeout_seconds); press "
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
