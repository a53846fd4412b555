"""Facts about a run, each a row of `meta`: what it trains, on which data, how far it is compacted."""

from asyncrl.journal.connection import Readable
from asyncrl.journal.counters import Statement


def read_fact(journal: Readable, key: str) -> str | None:
    """The value of a fact; None while it is not set."""
    return next((value for (value,) in journal.read("SELECT value FROM meta WHERE key = ?", (key,))), None)


def set_fact(key: str, value: str) -> Statement:
    return "INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value)


def forget_fact(key: str) -> Statement:
    return "DELETE FROM meta WHERE key = ?", (key,)


def set_first_fact(key: str, value: str) -> Statement:
    """Changes nothing where the fact is known."""
    return "INSERT OR IGNORE INTO meta VALUES (?, ?)", (key, value)
