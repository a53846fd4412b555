"""The conservation table: every generated token was trained, is still queued, or was dropped, per reason.

Each fate was counted where it happened, so a token that is not accounted for shows. Does not decide what to
do about it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from asyncrl.journal import counters
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

    `accounts` as in counters.py; taken and queued tokens are in none of them.
    """
    dropped = {f"dropped: {reason}": accounts.get(counters.DROPPED + reason, 0) for reason in DropReason}
    return {
        GENERATED: accounts.get(counters.GENERATED, 0),
        TRAINED: accounts.get(counters.TRAINED, 0),
        "taken": taken,
        "queued": queued,
        **dropped,
    }


def read_conservation(path: Path) -> dict[str, int]:
    """The `token_fates` of a journal, as far as it is committed. Raises InputError."""
    journal = JournalReader(path)
    held = dict(journal.read(_HELD))
    accounts = counters.read_counters(journal)
    return token_fates(accounts, taken=held.get("taken", 0), queued=held.get("queued", 0))
