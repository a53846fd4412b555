"""Standard input for commands that do other work meanwhile, read by a daemon thread.

An asyncio executor thread would delay Ctrl-C until the next line.
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
"""Most items that the thread reads ahead."""


def lines() -> Iterator[str]:
    """Lines of standard input without line ends; none when it is closed.

    Not through sys.stdin: the process cannot exit while a thread holds its lock.
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
    """Yields and raises what the iterator does; the iterator may block."""
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
