"""Makes a process slow for real: it is stopped most of the time, by a thread, until the context ends."""

import contextlib
import signal
import threading
from collections.abc import Iterator

import psutil


@contextlib.contextmanager
def slowed(process: psutil.Process, *, running_seconds: float, stopped_seconds: float) -> Iterator[None]:
    """`process` and what it started run for `running_seconds`, then stand still for `stopped_seconds`, ..."""
    family = [process, *process.children(recursive=True)]
    is_over = threading.Event()

    def send(number: signal.Signals) -> None:
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.send_signal(number)

    def alternate() -> None:
        while not is_over.is_set():
            send(signal.SIGSTOP)
            is_over.wait(stopped_seconds)
            send(signal.SIGCONT)
            is_over.wait(running_seconds)

    thread = threading.Thread(target=alternate, name="slow server")
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
