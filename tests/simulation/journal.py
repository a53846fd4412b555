"""The journal on a disk that can crash: real SQLite in memory, written when the driven clock says so."""

import asyncio
import contextlib
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simulation.world import World

from asyncrl.journal.connection import Statement, open_for_writing
from asyncrl.journal.writer import COMMIT_INTERVAL_SECONDS, Journal, JournalError

_NOTED = """
CREATE TEMP TABLE verdicts (trajectory_id TEXT);
CREATE TEMP TRIGGER noted AFTER UPDATE OF outcome ON trajectories WHEN NEW.outcome IS NOT NULL
BEGIN INSERT INTO verdicts VALUES (NEW.trajectory_id); END;
"""
"""Notes each verdict that reaches the disk."""


def new_disk() -> sqlite3.Connection:
    """What survives the controller."""
    connection = open_for_writing(Path(":memory:"))
    connection.executescript(_NOTED)
    return connection


class SimulatedJournal(Journal):
    """As the writer thread does it: batches of statements, one transaction each, some time later."""

    def __init__(self, world: World) -> None:
        self.path = Path("journal.sqlite")
        self._world = world
        self._failure: JournalError | None = None
        self._connection = world.connection
        self._pending: list[list[Statement]] = []
        self._is_dead = False
        self._timer: asyncio.TimerHandle | None = None

    def write(self, *statements: Statement) -> None:
        if self._is_dead:
            return
        self._raise_failure()
        self._pending.append(list(statements))
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(COMMIT_INTERVAL_SECONDS, self._flush)

    async def barrier(self) -> None:
        self._raise_failure()
        await asyncio.sleep(self._world.delay(0.01))
        if self._is_dead:
            await asyncio.Event().wait()
        self._flush()
        self._raise_failure()

    def read(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql, parameters).fetchall()

    def reading(self) -> contextlib.AbstractContextManager[sqlite3.Connection]:
        return contextlib.nullcontext(self._connection)

    def close(self) -> None:
        self._flush()
        self._raise_failure()

    def crash(self) -> None:
        """kill -9: of what was not yet on disk, some first part is."""
        self._pending = self._pending[: self._world.rng.randint(0, len(self._pending))]
        self._flush()
        self._is_dead = True

    def fill_disk(self) -> None:
        """Nothing more can be written."""
        self._pending = []
        self._failure = JournalError("The journal cannot be written: database or disk is full.")

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        pending, self._pending = self._pending, []
        if pending and not self._is_dead:
            self._commit([statement for statements in pending for statement in statements])
