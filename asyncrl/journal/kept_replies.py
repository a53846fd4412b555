"""Replies of opponents in trajectories that have not ended: RUN/opponents.sqlite."""

import contextlib
import json
import logging
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from asyncrl.records import Finish

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
