"""Usage of each start of a run: counters as they were last seen.

A start's rows are overwritten while it runs, so that what a killed run used is known up to the last sample.
No row of an earlier start is ever removed: time is spent even where steps are trained again.
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass

from asyncrl.journal.connection import Readable
from asyncrl.journal.writer import Journal

RUN, CONTROLLER, OTHERS = "run", "controller", "verifiers"
"""Names of the rows of a start that are no processes of their own: the whole, this process, all others."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Usage of one process in one start."""

    name: str
    wall_seconds: float
    cpu_seconds: float | None = None
    num_gpus: int = 0
    num_restarts: int = 0


def record_usage(journal: Journal, started_seconds: float, usages: Sequence[Usage]) -> None:
    """Overwrites what the same start recorded before."""
    insert = "INSERT OR REPLACE INTO usage VALUES (?, ?, ?, ?, ?, ?)"
    journal.write(*((insert, (started_seconds, *astuple(use))) for use in usages))


def read_usage(journal: Readable) -> dict[float, list[Usage]]:
    """Time that a start began -> what it used, the first one first."""
    rows = journal.read(
        "SELECT started_seconds, name, wall_seconds, cpu_seconds, num_gpus, num_restarts FROM usage "
        "ORDER BY 1, 2"
    )
    found: dict[float, list[Usage]] = {}
    for started, *fields in rows:
        found.setdefault(started, []).append(Usage(*fields))
    return found
