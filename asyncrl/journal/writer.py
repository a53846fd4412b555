"""The journal's writer: groups, segments, verdicts, takes and commits go into one SQLite file as they happen.

One thread owns the connection; callers hand it statements and return, so the event loop waits for a disk at a
`barrier` only. What is behind a passed barrier survives kill -9 and power loss. Statements that were handed
over together are committed together. Whatever fails in the thread stops the journal for good, is told to
`on_failure` and raised by every later call and every waiting barrier: the run must end rather than continue
unrecorded. What the file holds is said in schema.py.
"""

import asyncio
import contextlib
import itertools
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from operator import itemgetter
from pathlib import Path
from typing import Any

from asyncrl.errors import AsyncrlError
from asyncrl.journal.connection import (
    DAMAGE_CODES,
    Parameters,
    Statement,
    open_for_reading,
    open_for_writing,
    sum_counters,
)
from verifiers.storable import MAX_WORDS_CHARACTERS, storable

COMMIT_INTERVAL_SECONDS = 0.05
"""Statements wait at most this long for others to share a disk sync with; a barrier does not wait."""

DISK_CODES = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
ACCESS_CODES = (
    *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN),
    *(sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH),
)


class JournalError(AsyncrlError):
    """The journal could not be written or read; the message says why and what to do."""


class Journal:
    """Writes are asynchronous and ordered; reads see everything behind the last barrier."""

    def __init__(self, path: Path) -> None:
        """Makes the file where there is none. Raises InputError for another version's, and JournalError."""
        self.path = path
        self._failure: JournalError | None = None
        self._on_failure: Callable[[JournalError], None] | None = None
        self._inbox: queue.SimpleQueue[list[Statement] | Future[None] | None] = queue.SimpleQueue()
        try:
            self._connection = open_for_writing(path)
        except sqlite3.Error as error:
            raise JournalError(f"The journal {path} cannot be opened: {error}.") from error
        self._thread = threading.Thread(target=self._write_loop, name="journal", daemon=True)
        self._thread.start()

    def on_failure(self, told: Callable[[JournalError], None]) -> None:
        """`told` is called once, from the writer's thread, when it has failed."""
        self._on_failure = told

    def read(self, sql: str, parameters: Parameters = ()) -> list[tuple[Any, ...]]:
        """Rows of a query on everything that is committed. Raises InputError when the file is damaged."""
        with self.reading() as db:
            return db.execute(sql, parameters).fetchall()

    def reading(self) -> AbstractContextManager[sqlite3.Connection]:
        """A connection for several queries, on one consistent state; never locks the writer out."""
        return open_for_reading(self.path)

    def write(self, *statements: Statement) -> None:
        """Hands over statements of one transaction. Raises JournalError once a write has failed."""
        self._raise_failure()
        self._inbox.put(list(statements))

    async def barrier(self) -> None:
        """Returns when everything handed over so far is on disk. Raises JournalError."""
        await asyncio.wrap_future(self._barrier())

    def barrier_blocking(self) -> None:
        """`barrier` for callers without an event loop."""
        self._barrier().result()

    def close(self) -> None:
        """Writes what was handed over, then closes. Raises JournalError when that fails."""
        self._inbox.put(None)
        self._thread.join()
        self._connection.close()
        self._raise_failure()

    def _barrier(self) -> Future[None]:
        self._raise_failure()
        future: Future[None] = Future()
        self._inbox.put(future)
        return future

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _write_loop(self) -> None:
        is_open = True
        while is_open:
            batch, is_open = self._gather()
            statements = [s for item in batch if isinstance(item, list) for s in item]
            barriers = [item for item in batch if isinstance(item, Future)]
            self._commit(statements)
            for barrier in barriers:
                # A waiting task may have given up meanwhile, such as a take that is asked again.
                if not barrier.set_running_or_notify_cancel():
                    continue
                if self._failure is None:
                    barrier.set_result(None)
                else:
                    barrier.set_exception(self._failure)

    def _gather(self) -> tuple[list[list[Statement] | Future[None]], bool]:
        """Items until a barrier, the end, or COMMIT_INTERVAL_SECONDS after the first."""
        batch: list[list[Statement] | Future[None]] = []
        deadline: float | None = None
        while True:
            timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                item = self._inbox.get(timeout=timeout)
            except queue.Empty:
                return batch, True
            if item is None:
                return batch, False
            batch.append(item)
            if isinstance(item, Future):
                return batch, True
            deadline = deadline or time.monotonic() + COMMIT_INTERVAL_SECONDS

    def _commit(self, statements: Iterable[Statement]) -> None:
        if self._failure is not None:
            return
        try:
            with self._connection:
                # One call per run of equal statements, one update per counter: this thread shares the
                # interpreter with the event loop.
                for sql, run in itertools.groupby(sum_counters(statements), key=itemgetter(0)):
                    self._connection.executemany(sql, [parameters for _, parameters in run])
        # A thread that ends leaves its barriers waiting: whatever it is, it ends the run instead.
        except BaseException as error:
            self._fail(
                f"The journal {self.path} cannot be written: {type(error).__name__}: {error}. The run stops "
                f"so that nothing goes unrecorded; {_way_out(error)}."
            )

    def _fail(self, words: str) -> None:
        self._failure = JournalError(storable(words, limit=MAX_WORDS_CHARACTERS))
        if self._on_failure is not None:
            # Every later call raises it anyway; this thread must live on to answer the barriers.
            with contextlib.suppress(Exception):
                self._on_failure(self._failure)


def _way_out(error: BaseException) -> str:
    """Advice for a person about a write that failed."""
    code = getattr(error, "sqlite_errorcode", None)
    # The low byte: the others tell which read, write or sync it was.
    kind = None if code is None else code & 0xFF
    if kind in DISK_CODES:
        return "free up disk space, or repair the disk, and run the same command again: it resumes"
    if kind in ACCESS_CODES:
        return "make the file writable for this process alone and run the same command again: it resumes"
    if kind in DAMAGE_CODES:
        return "restore the file, or set run_folder to a new folder"
    return "this is a defect of asyncrl, not of the disk"
