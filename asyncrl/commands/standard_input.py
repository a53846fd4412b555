"""Standard input for commands that do something else meanwhile, read by a thread that nobody waits for.

A thread of asyncio's own would keep Ctrl-C waiting for the next line.
"""

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Iterator
from typing import TypeVar

Item = TypeVar("Item")

FILE = 0
MOST_AHEAD = 64
"""Items that the thread reads before the first of them is taken."""


def lines() -> Iterator[str]:
    """Lines of standard input without their ends; none when it is closed.

    Not through sys.stdin: a thread that holds its lock cannot be left behind when the process ends.
    """
    rest = b""
    while part := _read():
        *whole, rest = (rest + part).split(b"\n")
        for line in whole:
            yield _text(line)
    if rest:
        yield _text(rest)


def _read() -> bytes:
    with contextlib.suppress(OSError):
        return os.read(FILE, 65536)
    return b""


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace").removesuffix("\r")


async def in_thread(items: Iterator[Item]) -> AsyncIterator[Item]:
    """What the iterator gives, as it comes, and what it raises; it may block."""
    loop, arrived = asyncio.get_running_loop(), asyncio.Queue[Item | BaseException | None]()
    room = threading.Semaphore(MOST_AHEAD)

    def read() -> None:
        end: BaseException | None = None
        # The loop may be closed before the input is.
        with contextlib.suppress(RuntimeError):
            try:
                for item in items:
                    room.acquire()
                    loop.call_soon_threadsafe(arrived.put_nowait, item)
            except Exception as error:  # handed to whoever waits
                end = error
            loop.call_soon_threadsafe(arrived.put_nowait, end)

    threading.Thread(target=read, daemon=True, name="standard input").start()
    while (item := await arrived.get()) is not None:
        if isinstance(item, BaseException):
            raise item
        room.release()
        yield item
