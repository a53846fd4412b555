"""SQLite files beside the journal: answers and results that `asyncrl eval` keeps, with the texts of some, and
replies of opponents in trajectories that have not ended (RUN/opponents.sqlite).
"""

import contextlib
import hashlib
import json
import logging
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from asyncrl.errors import InputError
from asyncrl.journal.packing import pack_tokens, unpack_tokens
from asyncrl.records import Finish
from verifiers.storable import storable

VERSION = 1
BUSY_SECONDS = 30.0
_KEYS_PER_QUERY = 500
MOST_SEED = 2**31 - 2**20
"""Seeds of servers count up from one below this."""
_TABLES = """
CREATE TABLE answers (
    key BLOB NOT NULL, sample INTEGER NOT NULL, tokens BLOB NOT NULL, is_cut INTEGER NOT NULL,
    PRIMARY KEY (key, sample)
) WITHOUT ROWID;
CREATE TABLE verdicts (
    key BLOB PRIMARY KEY, outcome TEXT NOT NULL, correctness REAL NOT NULL, extracted TEXT
) WITHOUT ROWID;
CREATE TABLE starts (number INTEGER PRIMARY KEY, seed INTEGER NOT NULL, seconds REAL NOT NULL);
CREATE TABLE results (
    name TEXT NOT NULL, settings TEXT NOT NULL, model TEXT NOT NULL, label TEXT NOT NULL,
    seconds REAL NOT NULL, num_samples INTEGER NOT NULL, result TEXT NOT NULL,
    PRIMARY KEY (name, settings, model)
);
"""


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    tokens: list[int]
    is_cut: bool
    """Whether it ended at the limit of its tokens."""


@dataclass(frozen=True, slots=True)
class KeptVerdict:
    outcome: str
    correctness: float
    extracted: str | None


@dataclass(frozen=True, slots=True)
class KeptResult:
    """The last result of a model on an evaluation set, under settings that decide what it is."""

    name: str
    """The evaluation set."""
    settings: str
    """Digest of how it was asked: results of equal settings may be compared."""
    model: str
    """Digest of the weights."""
    label: str
    seconds: float
    """Unix time."""
    result: dict[str, Any]


class AnswerStore:
    """Opened for writing; a context manager. Its folder is made. Raises InputError for another file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
            try:
                self._db.execute("PRAGMA journal_mode = WAL")
                # A killed process loses nothing; power loss may take the last answers, and no more.
                self._db.execute("PRAGMA synchronous = NORMAL")
                with self._transaction():
                    (version,) = self._db.execute("PRAGMA user_version").fetchone()
                    if version == 0:
                        _create(self._db)
            except BaseException:
                self._db.close()
                raise
        except (OSError, sqlite3.Error) as error:
            raise InputError(f"{path} cannot hold the answers of evaluations: {error}.") from error
        _check_version(path, version or VERSION)

    def __enter__(self) -> "AnswerStore":
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def answers(self, key: bytes, num_samples: int) -> dict[int, KeptAnswer]:
        """Place among the samples -> the answer there, for those of the first `num_samples` that are kept."""
        rows = self._db.execute(
            "SELECT sample, tokens, is_cut FROM answers WHERE key = ? AND sample < ?", (key, num_samples)
        )
        return {sample: KeptAnswer(unpack_tokens(tokens), bool(is_cut)) for sample, tokens, is_cut in rows}

    def verdicts(self, keys: Sequence[bytes]) -> dict[bytes, KeptVerdict]:
        """Those that are kept, by their keys."""
        found: dict[bytes, KeptVerdict] = {}
        for first in range(0, len(keys), _KEYS_PER_QUERY):
            some = keys[first : first + _KEYS_PER_QUERY]
            rows = self._db.execute(
                "SELECT key, outcome, correctness, extracted FROM verdicts "
                f"WHERE key IN ({', '.join('?' * len(some))})",
                some,
            )
            found |= {key: KeptVerdict(*verdict) for key, *verdict in rows}
        return found

    def add_answers(self, answers: Iterable[tuple[bytes, int, KeptAnswer]]) -> None:
        """Keeps (key, place among the samples, answer)."""
        rows = [(key, sample, pack_tokens(a.tokens), int(a.is_cut)) for key, sample, a in answers]
        with self._transaction():
            self._db.executemany("INSERT OR IGNORE INTO answers VALUES (?, ?, ?, ?)", rows)

    def add_verdicts(self, verdicts: Mapping[bytes, KeptVerdict]) -> None:
        """Keeps verdicts by their keys, in place of earlier ones."""
        rows = [
            (key, v.outcome, v.correctness, None if v.extracted is None else storable(v.extracted))
            for key, v in verdicts.items()
        ]
        with self._transaction():
            self._db.executemany("INSERT OR REPLACE INTO verdicts VALUES (?, ?, ?, ?)", rows)

    def forget_answers(self, key: bytes) -> None:
        with self._transaction():
            self._db.execute("DELETE FROM answers WHERE key = ?", (key,))

    def new_seed(self, seed: int) -> int:
        """A seed that no servers had whose answers are kept here: of `seed` and the number of starts so far.
        Servers of one seed draw the same samples, which would count twice."""
        with self._transaction():
            (number,) = self._db.execute("SELECT coalesce(max(number), 0) + 1 FROM starts").fetchone()
            digest = hashlib.sha256(f"{seed} {number}".encode()).digest()
            found = int.from_bytes(digest[:8], "little") % MOST_SEED
            self._db.execute("INSERT INTO starts VALUES (?, ?, ?)", (number, found, time.time()))
        return found

    def keep_result(
        self,
        name: str,
        settings: str,
        model: str,
        label: str,
        result: Mapping[str, Any],
        *,
        num_samples: int,
        is_fresh: bool = False,
    ) -> None:
        """Replaces that of an earlier call with these settings, unless that had more samples per task. One
        that `is_fresh` replaces any."""
        columns = (storable(name), settings, model, storable(label))
        with self._transaction():
            if is_fresh:
                self._db.execute(
                    "DELETE FROM results WHERE name = ? AND settings = ? AND model = ?", columns[:3]
                )
            self._db.execute(
                "INSERT INTO results VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
                "label = excluded.label, seconds = excluded.seconds, num_samples = excluded.num_samples, "
                "result = excluded.result WHERE excluded.num_samples >= results.num_samples",
                (*columns, time.time(), num_samples, json.dumps(result)),
            )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")


def read_results(path: Path) -> list[KeptResult]:
    """All results that are kept in the file, the oldest first; none where there is no file. Reads only, also
    while another process writes. Raises InputError."""
    if not path.is_file():
        return []
    try:
        address = f"{path.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS)) as db:
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if version == 0:
                return []
            _check_version(path, version)
            rows = db.execute(
                "SELECT name, settings, model, label, seconds, result FROM results ORDER BY seconds"
            ).fetchall()
    except sqlite3.DatabaseError as error:
        raise InputError(f"{path} cannot be read as the answers of evaluations: {error}.") from error
    return [
        KeptResult(name, settings, model, label, seconds, json.loads(result))
        for name, settings, model, label, seconds, result in rows
    ]


def _create(db: sqlite3.Connection) -> None:
    """Within a transaction, which a script would end."""
    for statement in _TABLES.split(";"):
        db.execute(statement)
    db.execute(f"PRAGMA user_version = {VERSION}")


def _check_version(path: Path, version: int) -> None:
    if version != VERSION:
        raise InputError(
            f"{path} holds answers of evaluations in layout {version}, and this version of asyncrl reads "
            f"{VERSION} only. Move it away to ask again."
        )


ANSWERS = "answers"
"""Their name in the result."""
MOST_TASKS = 200
MOST_CHARACTERS = 3000
"""Length of a prompt or an answer that is kept whole; of a longer one the beginning and the end are."""


class ShownAnswer(TypedDict):
    task_id: str
    prompt: str
    text: str
    extracted: str | None
    outcome: str
    correctness: float | None
    """In [0, 1]; None for a fault."""
    num_tokens: int
    is_cut: bool


class ShownAnswers(TypedDict):
    is_greedy: bool
    """Whether they are the most likely answers; else the first sample of each task."""
    num_tasks: int
    """Tasks of the evaluation set."""
    tasks: list[ShownAnswer]
    """The first MOST_TASKS, in their order."""


log = logging.getLogger(__name__)

_TABLE = """CREATE TABLE IF NOT EXISTS replies (trajectory TEXT, call TEXT, tokens TEXT, logprobs TEXT,
finish TEXT, PRIMARY KEY (trajectory, call)) WITHOUT ROWID"""


@dataclass(frozen=True, slots=True)
class Said:
    """One reply of an opponent."""

    tokens: list[int]
    logprobs: list[float]
    finish: Finish


class KeptReplies:
    """Replies of trajectories that have not ended, in a file of SQLite, or in memory."""

    def __init__(self, path: Path | None = None) -> None:
        self._database = sqlite3.connect(path or ":memory:", isolation_level=None)
        # What a power cut loses is sampled again.
        for line in ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = NORMAL", _TABLE):
            self._database.execute(line)
        self._is_warned = False

    def find(self, trajectory: str, call: str) -> Said | None:
        row = self._database.execute(
            "SELECT tokens, logprobs, finish FROM replies WHERE trajectory = ? AND call = ?",
            (trajectory, call),
        ).fetchone()
        return None if row is None else Said(json.loads(row[0]), json.loads(row[1]), Finish(row[2]))

    def keep(self, trajectory: str, call: str, said: Said) -> None:
        row = (trajectory, call, json.dumps(said.tokens), json.dumps(said.logprobs), said.finish)
        with self._warning():
            self._database.execute("INSERT OR REPLACE INTO replies VALUES (?, ?, ?, ?, ?)", row)

    def forget(self, trajectory: str) -> None:
        """It has ended."""
        with self._warning():
            self._database.execute("DELETE FROM replies WHERE trajectory = ?", (trajectory,))

    def close(self) -> None:
        self._database.close()

    @contextlib.contextmanager
    def _warning(self) -> Iterator[None]:
        """A disk that refuses costs work after a crash, and nothing else."""
        try:
            yield
        except sqlite3.Error as error:
            if not self._is_warned:
                self._is_warned = True
                log.warning(
                    "replies of opponents cannot be kept: %s. After a crash they are sampled again.", error
                )
