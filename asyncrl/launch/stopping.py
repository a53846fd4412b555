"""How a run is asked to stop, and its last resort: each phase of the stop has its time, and a phase that
takes longer ends the process, whatever it does.

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
from dataclasses import dataclass
from typing import Protocol

from asyncrl.controller.controller import ENDING_SECONDS

log = logging.getLogger(__name__)

PROCESSES_SECONDS = 10.0
"""For what comes after the step: servers, trackers and trainer end, the journal closes."""
REPORT_SECONDS = 10.0
"""For the report of a stopped run, which draws curves; `asyncrl report` writes it again at any time."""
HURRIED_SECONDS = 5.0
"""For all of it, after a second signal."""
INTERRUPTED = 130
"""Exit code of a run that was stopped."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a stop. What an earlier one did not use is not added."""

    what: str
    seconds: float


def phases_of_stop(step_seconds: float) -> list[Phase]:
    """In their order; `step_seconds` is trainer.stop_timeout_seconds. Streams, verdicts and evaluations end
    beside the step: `asyncrl.controller.controller.ENDING_SECONDS`."""
    return [
        Phase("the current step and its checkpoint", step_seconds + ENDING_SECONDS),
        Phase("servers, trackers and journal", PROCESSES_SECONDS),
        Phase("the report", REPORT_SECONDS),
    ]


class Timer(Protocol):
    """As `threading.Timer`."""

    daemon: bool

    def start(self) -> None: ...

    def cancel(self) -> None: ...


class LastResort:
    """Context manager of a run from its start to its report. From the first signal on, each of `phases` ends
    in its time, or the process does."""

    def __init__(
        self,
        phases: list[Phase],
        *,
        hurried_seconds: float = HURRIED_SECONDS,
        timer: Callable[[float, Callable[[], None]], Timer] = threading.Timer,
        end: Callable[[int], None] = os._exit,
    ) -> None:
        """After a second signal at most `hurried_seconds` are left for all phases."""
        self._phases = phases
        self._hurried_seconds = hurried_seconds
        self._make_timer = timer
        self._end_process = end
        self._index = 0
        self._timer: Timer | None = None
        self._is_hurried = False

    def watch(self, *numbers: signal.Signals) -> None:
        """The first of these signals starts the clock, the second shortens it.

        Call it after the event loop's own handlers are set. The loop is woken by a file descriptor and
        answers when it can; a handler of Python's own runs also while the main thread is held by code that
        never returns to the loop.
        """
        for number in numbers:
            signal.signal(number, lambda *_: self.begin())

    def begin(self) -> None:
        """A signal has come."""
        if self._timer is None:
            self._start(self._phases[self._index].seconds)
        elif not self._is_hurried:
            self._is_hurried = True
            self._start(min(self._hurried_seconds, self._phases[self._index].seconds))

    def next_phase(self) -> None:
        """The phase is over; the next one has its own time, unless a second signal has come."""
        self._index += 1
        if self._timer is not None and not self._is_hurried:
            self._start(self._phases[self._index].seconds)

    def _start(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._make_timer(seconds, lambda: self._end(seconds))
        self._timer.daemon = True
        self._timer.start()

    def _end(self, seconds: float) -> None:
        words = (
            f"{self._phases[self._index].what} did not end within {seconds:g} s: the rest is killed. What "
            f"the journal holds is safe; the same command resumes.\n"
        )
        os.write(sys.stderr.fileno(), words.encode())
        self._end_process(INTERRUPTED)

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
