"""The journal: every group, segment, verdict, take and commit in one SQLite file (WAL), as it happens.

One writer thread owns the connection; callers hand it statements and return, so the event loop waits for a
disk at a `barrier` only. What is behind a passed barrier survives kill -9 and power loss. Statements that
were handed over together are committed together. Whatever fails in the writer stops the journal for good, is
told to `on_failure` and raised by every later call, barriers that wait included: the run must end rather than
continue unrecorded.

Tables, for plain SQL (`sqlite3 RUN/journal.sqlite`): a group is one row of `groups`, each of its trajectories
one of `trajectories`, each streamed chunk of a trajectory one of `segments` (`tokens` little-endian int32,
`logprobs` float32, `position` the index of its first token, `is_continued` over a cache of an older version).
`streams` says which server went on with a trajectory from which position.
`repetitions` says which later steps trained a group again (`groups.step` is the first).
`servers` says what was added to the fleet or removed from it (`named`: the servers of the recipe then).
`commits` are durable checkpoints, `starts` the starts of the run with their recipes, `counters` the token
accounts, `compacted` what is left of segments whose tokens were let go (`runs`: a JSON list of [version,
tokens, is_continued]). `groups.step` counts from 0: step s makes version s + 1 out of version s. Everything
that is shown to people, and metrics.jsonl, counts steps from 1: step n is the one that made version n.
"""

import asyncio
import contextlib
import itertools
import queue
import sqlite3
import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from operator import itemgetter
from pathlib import Path
from typing import Any

from asyncrl.errors import AsyncrlError, InputError
from verifiers.storable import MAX_WORDS_CHARACTERS, storable

SCHEMA_VERSION = "1"
SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS groups (
    group_id INTEGER PRIMARY KEY, task_id TEXT NOT NULL, prompt TEXT NOT NULL, state TEXT NOT NULL,
    admitted_version INTEGER NOT NULL, admitted_seconds REAL NOT NULL, step INTEGER, reason TEXT);
CREATE INDEX IF NOT EXISTS groups_by_step ON groups (step);
CREATE TABLE IF NOT EXISTS trajectories (
    trajectory_id TEXT PRIMARY KEY, group_id INTEGER NOT NULL, sample INTEGER NOT NULL,
    prompt_tokens BLOB NOT NULL, finish TEXT, outcome TEXT, correctness REAL, reward REAL, advantage REAL,
    extracted TEXT, detail TEXT, verify_seconds REAL, text TEXT);
CREATE INDEX IF NOT EXISTS trajectories_by_group ON trajectories (group_id);
CREATE TABLE IF NOT EXISTS segments (
    trajectory_id TEXT NOT NULL, position INTEGER NOT NULL, version INTEGER NOT NULL,
    is_continued INTEGER NOT NULL, tokens BLOB NOT NULL, logprobs BLOB NOT NULL,
    PRIMARY KEY (trajectory_id, position)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS commits (
    version INTEGER PRIMARY KEY, checkpoint_folder TEXT NOT NULL, committed_seconds REAL NOT NULL);
CREATE TABLE IF NOT EXISTS streams (
    trajectory_id TEXT NOT NULL, position INTEGER NOT NULL, server TEXT NOT NULL,
    started_seconds REAL NOT NULL);
CREATE INDEX IF NOT EXISTS streams_by_trajectory ON streams (trajectory_id);
CREATE TABLE IF NOT EXISTS repetitions (
    step INTEGER NOT NULL, group_id INTEGER NOT NULL, PRIMARY KEY (step, group_id)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS repetitions_by_group ON repetitions (group_id);
CREATE TABLE IF NOT EXISTS starts (
    version INTEGER PRIMARY KEY, recipe TEXT NOT NULL, started_seconds REAL NOT NULL);
CREATE TABLE IF NOT EXISTS servers (
    url TEXT NOT NULL, action TEXT NOT NULL, is_local INTEGER NOT NULL, named TEXT NOT NULL,
    changed_seconds REAL NOT NULL);
CREATE TABLE IF NOT EXISTS compacted (
    trajectory_id TEXT PRIMARY KEY, num_tokens INTEGER NOT NULL, version_min INTEGER NOT NULL,
    version_max INTEGER NOT NULL, runs TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
"""

COMMIT_INTERVAL_SECONDS = 0.05
"""Statements wait at most this long for others to share a disk sync with; a barrier does not wait."""

WAL_BYTES = 64 * 2**20
"""What the write-ahead log is cut back to after a large transaction."""

DISK_CODES = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
ACCESS_CODES = (
    *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN),
    *(sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH),
)
DAMAGE_CODES = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

Parameters = Sequence[Any] | Mapping[str, Any]
_IS_LITTLE = sys.byteorder == "little"
Statement = tuple[str, Parameters]
_BUMP = "INSERT INTO counters VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = value + excluded.value"


class JournalError(AsyncrlError):
    """The journal could not be written or read; the message says why and what to do."""


class JournalReader:
    """Reads the file at `path` while its writer writes, or after; never writes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, sql: str, parameters: Parameters = ()) -> list[tuple[Any, ...]]:
        """Rows of a query on a connection of its own: everything that is committed.

        Raises InputError when the file is no database, or a damaged one.
        """
        address = f"{self.path.absolute().as_uri()}?mode=ro"
        try:
            with contextlib.closing(sqlite3.connect(address, uri=True)) as reader:
                return reader.execute(sql, parameters).fetchall()
        except sqlite3.OperationalError:
            # A defect of the query, or of a moment.
            raise
        except sqlite3.DatabaseError as error:
            raise InputError(f"{self.path} cannot be read as the journal of a run: {error}.") from error

    def has_table(self, name: str) -> bool:
        """False for what a journal of an earlier version of this project lacks."""
        return bool(self.read("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (name,)))


class Journal(JournalReader):
    """Writes are asynchronous and ordered; reads see everything behind the last barrier."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._failure: JournalError | None = None
        self._on_failure: Callable[[JournalError], None] | None = None
        self._inbox: queue.SimpleQueue[list[Statement] | Future[None] | None] = queue.SimpleQueue()
        self._connection = _open(path)
        self._thread = threading.Thread(target=self._write_loop, name="journal", daemon=True)
        self._thread.start()

    def on_failure(self, told: Callable[[JournalError], None]) -> None:
        """`told` is called once, from the writer's thread, when it has failed."""
        self._on_failure = told

    def write(self, *statements: Statement) -> None:
        """Hands over statements of one transaction. Raises JournalError once a write has failed."""
        self._raise_failure()
        self._inbox.put(list(statements))

    async def barrier(self) -> None:
        """Returns when everything handed over so far is on disk. Raises JournalError."""
        await asyncio.wrap_future(self._barrier())

    def barrier_blocking(self) -> None:
        """The same for callers without an event loop."""
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
                # Who waited may have given up meanwhile, such as a take that is asked again.
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
                for sql, run in itertools.groupby(_sum_counters(statements), key=itemgetter(0)):
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
    """What a person may do about a write that failed."""
    code = getattr(error, "sqlite_errorcode", None)
    # The low byte: the others tell which read, write or sync it was.
    kind = None if code is None else code & 0xFF
    if kind in DISK_CODES:
        return "make room on the disk, or see to what ails it, and run the same command again, it resumes"
    if kind in ACCESS_CODES:
        return "make the file writable for this process alone and run the same command again, it resumes"
    if kind in DAMAGE_CODES:
        return "restore the file, or set run_folder to a new folder"
    return "this is a defect of asyncrl, not of the disk"


def _open(path: Path) -> sqlite3.Connection:
    try:
        connection = sqlite3.connect(path, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = WAL")
        # FULL: a take or commit that was answered must survive power loss, or a group could be trained twice.
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES}")
        connection.executescript(SCHEMA)
        connection.execute("INSERT OR IGNORE INTO meta VALUES ('schema_version', ?)", (SCHEMA_VERSION,))
        connection.commit()
    except sqlite3.Error as error:
        raise JournalError(f"The journal {path} cannot be opened: {error}.") from error
    ((found,),) = connection.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchall()
    if found != SCHEMA_VERSION:
        raise JournalError(
            f"The journal {path} has schema {found}, this version of asyncrl reads {SCHEMA_VERSION}. "
            f"Use another run_folder."
        )
    return connection


def _sum_counters(statements: Iterable[Statement]) -> list[Statement]:
    """The statements of one transaction with all additions to a counter as one, at the end."""
    others: list[Statement] = []
    sums: dict[str, int] = {}
    for statement in statements:
        if statement[0] is _BUMP:
            parameters: Any = statement[1]
            counter, amount = parameters
            sums[counter] = sums.get(counter, 0) + amount
        else:
            others.append(statement)
    return others + [(_BUMP, total) for total in sums.items()]


def bump(counter: str, amount: int) -> Statement:
    """A statement that adds `amount` to a counter, in the transaction of what it counts."""
    return _BUMP, (counter, amount)


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """int32, little-endian."""
    return array("i", tokens).tobytes() if _IS_LITTLE else _swapped(array("i", tokens)).tobytes()


def pack_logprobs(logprobs: Sequence[float]) -> bytes:
    """float32, little-endian."""
    return array("f", logprobs).tobytes() if _IS_LITTLE else _swapped(array("f", logprobs)).tobytes()


def unpack_tokens(blob: bytes) -> list[int]:
    values = array("i", blob)
    return values.tolist() if _IS_LITTLE else _swapped(values).tolist()


def unpack_logprobs(blob: bytes) -> list[float]:
    values = array("f", blob)
    return values.tolist() if _IS_LITTLE else _swapped(values).tolist()


def _swapped(values: "array[Any]") -> "array[Any]":
    values.byteswap()
    return values
