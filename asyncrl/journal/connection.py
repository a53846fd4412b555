"""A journal opened for its one writer, or read only, also while it is written; the token accounts of a run.

Owns the refusal of files that are no journal of this schema version. A refused file is not written to. Each
token is added to an account where its fate is decided, by a statement in the transaction of what it counts:
the file never shows one without the other.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

from asyncrl.errors import InputError
from asyncrl.journal.schema import AUTHOR_KEY, SCHEMA_KEY, SCHEMA_VERSION, create_tables, own_version

WAL_BYTES = 64 * 2**20
"""Size that the write-ahead log is cut back to after a large transaction."""
BUSY_SECONDS = 10.0
"""How long a reader waits while the file is locked, as for a recovery of the write-ahead log."""
DAMAGE_CODES = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
START_OVER = "or set run_folder (or name) to a new one to start over"

Parameters = Sequence[Any] | Mapping[str, Any]


class OtherSchema(InputError):
    """A whole journal, of a schema that this version of asyncrl does not read."""

    def __init__(self, message: str, schema: str) -> None:
        super().__init__(message)
        self.schema = schema


class Readable(Protocol):
    """A journal to query: `Journal` and `JournalReader`."""

    path: Path

    def read(self, sql: str, parameters: Parameters = ()) -> list[tuple[Any, ...]]:
        """Rows of a query on everything that is committed."""

    def reading(self) -> AbstractContextManager[sqlite3.Connection]:
        """A connection for several queries: opening one parses the whole schema."""


def open_for_writing(path: Path) -> sqlite3.Connection:
    """The connection of the one writer, its tables made. Raises InputError and sqlite3.Error."""
    is_new = not is_begun(path)
    connection = sqlite3.connect(path, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        # FULL: a take or commit that was answered must survive power loss, or a group could be trained twice.
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES}")
        if is_new:
            create_tables(connection)
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def open_for_reading(path: Path) -> Iterator[sqlite3.Connection]:
    """One consistent state of the journal, read only; never locks its writer out.

    Raises InputError when the file cannot be read or is damaged.
    """
    address = f"{path.absolute().as_uri()}?mode=ro"
    try:
        with closing(sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS)) as db:
            db.execute("BEGIN")
            yield db
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", None)
        if code in (None, sqlite3.SQLITE_ERROR):
            # A defect of the query, not of the file.
            raise
        # The low byte: the others tell how it was found.
        advice = f" Put it back, {START_OVER}." if code & 0xFF in DAMAGE_CODES else ""
        raise InputError(f"{path} cannot be read as the journal of a run: {error}.{advice}") from error


def is_begun(path: Path) -> bool:
    """Whether `path` is a journal of this schema version; False for no file and for one without tables, whose
    run was killed before it made them. Raises OtherSchema for another version, InputError for other files."""
    if not path.is_file():
        return False
    with open_for_reading(path) as db:
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not tables:
            return False
        meta = dict(db.execute("SELECT key, value FROM meta").fetchall()) if "meta" in tables else {}
    schema = meta.get(SCHEMA_KEY)
    if schema != SCHEMA_VERSION:
        author = f"asyncrl {meta[AUTHOR_KEY]}" if AUTHOR_KEY in meta else "another version of asyncrl"
        raise OtherSchema(
            f"{path} was written by {author} with schema {schema or 'unknown'}, and asyncrl {own_version()} "
            f"reads schema {SCHEMA_VERSION} only: use the version that began the run, {START_OVER}.",
            schema or "unknown",
        )
    return True


def find_damage(path: Path) -> str | None:
    """The damage that SQLite finds in the file, None when it is whole. Reads all of it."""
    with open_for_reading(path) as db:
        ((words,),) = db.execute("PRAGMA quick_check(1)").fetchall()
    return None if words == "ok" else str(words).splitlines()[-1]


GENERATED = "tokens_generated"
TRAINED = "tokens_trained"
"""Each token once, when a checkpoint first holds it."""
REPEATED = "tokens_repeated"
"""Tokens of groups that were trained again, each time."""
DROPPED = "tokens_dropped:"
"""Followed by a DropReason."""

Statement = tuple[str, Parameters]
_BUMP = "INSERT INTO counters VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = value + excluded.value"


def bump(counter: str, amount: int) -> Statement:
    """A statement that adds `amount` to a counter, in the transaction of what it counts."""
    return _BUMP, (counter, amount)


def sum_counters(statements: Iterable[Statement]) -> list[Statement]:
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


def read_counters(journal: Readable) -> Mapping[str, int]:
    """Each account that something was added to."""
    return dict(journal.read("SELECT name, value FROM counters"))
