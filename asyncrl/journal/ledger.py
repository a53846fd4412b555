"""The ledger: the fates of the groups of each step, as counts; which groups they are is a `GroupFilter`.

A step's row holds the groups that it trained, those that it trained again, and those that were admitted for
it at the earliest, which are the ones admitted at the version that it trains, by their fate. Reads
indices alone, so a page of it takes milliseconds in a journal of any size.
"""

from typing import TypedDict

from asyncrl.journal.connection import Readable

_LAST = "SELECT max((SELECT max(taken_version) FROM groups), (SELECT max(admitted_version) FROM groups))"
_TAKEN = """
SELECT taken_version, state, count(*) FROM groups
WHERE taken_version BETWEEN :first AND :last GROUP BY taken_version, state
"""
_REPEATED = """
SELECT taken_version, count(*) FROM repetitions
WHERE taken_version BETWEEN :first AND :last GROUP BY taken_version
"""
_ADMITTED = """
SELECT admitted_version, state, reason, count(*) FROM groups
WHERE admitted_version BETWEEN :first AND :last GROUP BY admitted_version, state, reason
"""


class LedgerRow(TypedDict):
    """Numbers of groups of a step."""

    step: int
    version: int
    """Version that the step trains: step - 1."""
    trained: int
    """Groups that this step trained first; a checkpoint holds it."""
    taken: int
    """Groups that this step took first; no checkpoint holds it yet."""
    repeated: int
    admitted: int
    """Groups admitted at the version that the step trains."""
    open: int
    """Admitted groups in generation or verification, or parked until a server has room."""
    ready: int
    """Admitted groups that are complete and wait to be taken."""
    dropped: dict[str, int]
    """Admitted groups that were dropped, by reason."""


def read_ledger(journal: Readable, *, before: int | None = None, limit: int = 50) -> list[LedgerRow]:
    """The last `limit` steps, or those before step `before`; the newest first."""
    ((last,),) = journal.read(_LAST)
    if last is None:
        # SQL's max of two numbers is none where one of them is.
        ((last,),) = journal.read("SELECT max(admitted_version) FROM groups")
    if last is None:
        return []
    if before is not None:
        last = min(last, before - 2)
    first = max(0, last - limit + 1)
    rows = {version: _empty(version) for version in range(last, first - 1, -1)}
    bounds = {"first": first, "last": last}
    for version, state, count in journal.read(_TAKEN, bounds):
        rows[version]["taken" if state == "taken" else "trained"] += count
    for version, count in journal.read(_REPEATED, bounds):
        rows[version]["repeated"] += count
    for version, state, reason, count in journal.read(_ADMITTED, bounds):
        row = rows[version]
        row["admitted"] += count
        if state == "dropped":
            row["dropped"][str(reason)] = count
        elif state == "open":
            row["open"] += count
        elif state == "ready":
            row["ready"] += count
    return list(rows.values())


def _empty(version: int) -> LedgerRow:
    return LedgerRow(
        step=version + 1,
        version=version,
        trained=0,
        taken=0,
        repeated=0,
        admitted=0,
        open=0,
        ready=0,
        dropped={},
    )
