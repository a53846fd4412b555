"""The token accounts of a run: each token is added to an account where its fate is decided.

An addition is a statement in the transaction of what it counts: the file never shows one without the other.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from asyncrl.journal.connection import Parameters, Readable

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
