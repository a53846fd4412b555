"""Fates of generated tokens: in all, as a table that accounts for each of them, and by step, as a ledger."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict, cast

from asyncrl.journal import connection
from asyncrl.journal.connection import Readable
from asyncrl.journal.reader import JournalReader
from asyncrl.records import DropReason

GENERATED = "generated"
TRAINED = "trained"

_HELD = """
SELECT CASE state WHEN 'taken' THEN 'taken' ELSE 'queued' END, sum(length(s.tokens) / 4)
FROM groups g JOIN trajectories t USING (group_id) JOIN segments s USING (trajectory_id)
WHERE state IN ('open', 'ready', 'taken') AND (state = 'open' OR advantage IS NOT NULL) GROUP BY 1
"""
"""Tokens that have no fate yet. Faults have left a group that is no longer open."""


@dataclass(frozen=True, slots=True)
class Fate:
    """One row of the table."""

    name: str
    """trained, taken, queued or "dropped: <reason>"."""
    tokens: int
    groups: int
    share: float
    """Share of the generated tokens."""


@dataclass(frozen=True, slots=True)
class Conservation:
    tokens: Mapping[str, int]
    """"generated", and each fate, in tokens."""
    groups: Mapping[str, int] = field(default_factory=dict)
    """Each fate in groups; a part of a group (a trajectory that could not be verified) has tokens only."""

    def generated_tokens(self) -> int:
        return self.tokens[GENERATED]

    def generated_groups(self) -> int:
        return sum(self.groups.values())

    def missing_tokens(self) -> int:
        """Generated and not accounted for: 0 when the books balance, negative when counted twice."""
        return 2 * self.tokens[GENERATED] - sum(self.tokens.values())

    def fates(self) -> list[Fate]:
        """Trained first, then the others with anything in them, largest first."""
        names = {*self.tokens, *self.groups} - {GENERATED}
        whole = max(1, self.tokens[GENERATED])
        rows = [
            Fate(name, self.tokens.get(name, 0), self.groups.get(name, 0), self.tokens.get(name, 0) / whole)
            for name in names
        ]
        kept = [row for row in rows if row.tokens or row.groups or row.name == TRAINED]
        return sorted(kept, key=lambda row: (row.name != TRAINED, -row.tokens, row.name))


def token_fates(accounts: Mapping[str, int], *, taken: int, queued: int) -> dict[str, int]:
    """Tokens: generated, trained, taken, queued, and dropped by reason; generated is the others' sum.

    `accounts` as `read_counters` has them; taken and queued tokens are in none of them.
    """
    dropped = {f"dropped: {reason}": accounts.get(connection.DROPPED + reason, 0) for reason in DropReason}
    return {
        GENERATED: accounts.get(connection.GENERATED, 0),
        TRAINED: accounts.get(connection.TRAINED, 0),
        "taken": taken,
        "queued": queued,
        **dropped,
    }


def read_conservation(path: Path) -> dict[str, int]:
    """The `token_fates` of a journal, as far as it is committed. Raises InputError."""
    journal = JournalReader(path)
    held = dict(journal.read(_HELD))
    accounts = connection.read_counters(journal)
    return token_fates(accounts, taken=held.get("taken", 0), queued=held.get("queued", 0))


# The ledger: a step's row holds the groups that it trained, those that it trained again, and those that were
# admitted for it at the earliest, which are the ones admitted at the version that it trains, by their fate.
# Reads indices alone, so a page of it takes milliseconds in a journal of any size.
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
    counts = ("trained", "taken", "repeated", "admitted", "open", "ready")
    rows = {
        version: cast(
            LedgerRow, {"step": version + 1, "version": version, **dict.fromkeys(counts, 0), "dropped": {}}
        )
        for version in range(last, first - 1, -1)
    }
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
