"""The surroundings of a command: its standard streams, and the script or notebook that it was started for.

Standard input is read by a daemon thread beside other work: asyncio's executor would delay Ctrl-C until the
next line.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Iterator, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from asyncrl.errors import InputError
from asyncrl.system.files import write_whole


def guard_streams() -> None:
    """Opens closed standard streams on /dev/null: the next file that is opened would be given their
    descriptors. Output and error take any text."""
    for number, mode in ((0, os.O_RDONLY), (1, os.O_WRONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free descriptor is this one: those below it are open.
            os.open(os.devnull, mode)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))
        stream = getattr(sys, name)
        if hasattr(stream, "reconfigure"):
            # A terminal or file of another encoding shows what it lacks as \xe9.
            stream.reconfigure(errors="backslashreplace")


def discard_output() -> None:
    """Discards output that is still to be written: Python flushes once more at exit, which would fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


VARIABLE = "ASYNCRL_CALLER"
"""Environment variable: "PID FILE", for the command alone and not for the processes that it starts."""
LOOKS_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Caller:
    pid: int
    """Process without which the command stops as by Ctrl-C, however it ended; 0: it goes on."""
    refusal: Path
    """File for the sentence of what the command refuses."""

    def variable(self) -> dict[str, str]:
        """For the environment of the command."""
        return {VARIABLE: f"{self.pid} {self.refusal}"}

    def tell(self, error: InputError) -> None:
        write_whole(self.refusal, str(error))

    def watch(self) -> None:
        if self.pid:
            threading.Thread(target=self._watch, name="caller", daemon=True).start()

    def _watch(self) -> None:
        # Not the kernel's signal on a parent's death: that is of the thread that started this process.
        while os.getppid() == self.pid:
            threading.Event().wait(LOOKS_SECONDS)
        os.kill(os.getpid(), signal.SIGINT)


def take_caller(environment: MutableMapping[str, str]) -> Caller | None:
    """The caller that the environment names, which is taken out of it."""
    if VARIABLE not in environment:
        return None
    pid, _, refusal = environment.pop(VARIABLE).partition(" ")
    return Caller(int(pid), Path(refusal))


Item = TypeVar("Item")
MOST_AHEAD = 64
"""Most items that the thread reads ahead."""


def lines(descriptor: int = 0) -> Iterator[str]:
    """Lines of standard input without line ends; none when it is closed.

    Not through sys.stdin: the process cannot exit while a thread holds its lock.
    """
    rest = b""
    while part := _read(descriptor):
        *whole, rest = (rest + part).split(b"\n")
        for line in whole:
            yield _text(line)
    if rest:
        yield _text(rest)


def _read(descriptor: int) -> bytes:
    with contextlib.suppress(OSError):
        return os.read(descriptor, 65536)
    return b""


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace").removesuffix("\r")


async def in_thread(items: Iterator[Item]) -> AsyncIterator[Item]:
    """Yields and raises what the iterator does; the iterator may block."""
    # Imported here: commands without it start faster.
    import asyncio

    loop, arrived = asyncio.get_running_loop(), asyncio.Queue[Item | BaseException | None]()
    room = threading.Semaphore(MOST_AHEAD)

    def read() -> None:
        end: BaseException | None = None
        # The loop may close before the input does.
        with contextlib.suppress(RuntimeError):
            try:
                for item in items:
                    room.acquire()
                    loop.call_soon_threadsafe(arrived.put_nowait, item)
            except Exception as error:  # raised to the consumer below
                end = error
            loop.call_soon_threadsafe(arrived.put_nowait, end)

    threading.Thread(target=read, daemon=True, name="standard input").start()
    while (item := await arrived.get()) is not None:
        if isinstance(item, BaseException):
            raise item
        room.release()
        yield item
