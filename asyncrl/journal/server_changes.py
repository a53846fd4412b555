"""Rollout servers that were added to or removed from a live run, so that it resumes with the same ones.

A change belongs to the servers that the recipe named at the time: with others in the recipe it is void. The
processes of a run listen elsewhere after a restart, unless serving.first_port is set: of local servers that
were removed only the number is known then, and none of them can be added back in a later start.
"""

import json
import time
from dataclasses import dataclass

from asyncrl.journal.connection import Readable
from asyncrl.journal.writer import Journal
from asyncrl.recipe import Serving


@dataclass(frozen=True, slots=True)
class ServerChanges:
    added: tuple[str, ...] = ()
    """URLs of external servers, oldest first."""
    removed: frozenset[str] = frozenset()
    """URLs of external ones that the recipe names."""
    removed_local: frozenset[str] = frozenset()
    """URLs that processes of the run had."""


def record_change(journal: Journal, action: str, url: str, *, is_local: bool, serving: Serving) -> None:
    """`action` is "add" or "remove"; `is_local` where the server is a process of the run."""
    row = (url, action, is_local, _named(serving), time.time())
    journal.write(("INSERT INTO servers VALUES (?, ?, ?, ?, ?)", row))


def read_changes(journal: Readable, serving: Serving) -> ServerChanges:
    """Changes that hold for a run that starts with `serving`: per server, the last one wins."""
    rows = journal.read(
        # SQLite takes the other columns from the row of the maximum.
        "SELECT url, action, is_local, max(rowid) FROM servers WHERE named = ? GROUP BY url, is_local "
        "ORDER BY max(rowid)",
        (_named(serving),),
    )

    def urls(wanted: str, *, is_local: bool) -> list[str]:
        return [url for url, action, local, _ in rows if action == wanted and bool(local) is is_local]

    return ServerChanges(
        tuple(urls("add", is_local=False)),
        frozenset(urls("remove", is_local=False)),
        frozenset(urls("remove", is_local=True)),
    )


def _named(serving: Serving) -> str:
    """The servers that the recipe names, as text."""
    return json.dumps([serving.servers, serving.num_servers, serving.first_port])
