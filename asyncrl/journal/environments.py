"""Where each start of a run ran: environment, the model's shape, the files of the user's own code.

No row is ever removed: that a run was started again is part of what it took.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from asyncrl.journal.connection import Readable
from asyncrl.journal.writer import Journal
from asyncrl.model.shape import ModelShape
from asyncrl.recipe import Recipe
from asyncrl.records import PolicyVersion
from asyncrl.system.digests import sha256_of
from asyncrl.system.environment import Environment

_OWN_FILE = re.compile(r"(/[^:\n]*\.py):[A-Za-z_]\w*")


class StartRecord(BaseModel):
    """Record of one start."""

    model_config = ConfigDict(extra="forbid")

    environment: Environment
    shape: ModelShape
    code: dict[str, str]
    """File that the recipe names as "file.py:name" -> its SHA-256."""


class Start(BaseModel):
    """A start with its record."""

    started_seconds: float
    """Unix time."""
    version: PolicyVersion
    """Version of the checkpoint that it began from."""
    record: StartRecord


def record_environment(
    journal: Journal, started_seconds: float, version: PolicyVersion, record: StartRecord
) -> None:
    row = (started_seconds, version, record.model_dump_json())
    journal.write(("INSERT OR REPLACE INTO environments VALUES (?, ?, ?)", row))


def read_starts(journal: Readable) -> list[Start]:
    """Every start, the first one first."""
    rows = journal.read("SELECT started_seconds, version, environment FROM environments ORDER BY 1")
    return [
        Start(started_seconds=seconds, version=version, record=StartRecord.model_validate_json(text))
        for seconds, version, text in rows
    ]


def last_environment(journal: Readable) -> Environment | None:
    """In what the run ran last; None before its first start."""
    starts = read_starts(journal)
    return starts[-1].record.environment if starts else None


def code_digests(recipe: Recipe) -> dict[str, str]:
    """Digests of the Python files that the recipe names and that are there."""
    files = dict.fromkeys(_own_files(recipe.model_dump()))
    return {file: sha256_of(Path(file)) for file in files if os.path.isfile(file)}


def _own_files(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from _own_files(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _own_files(inner)
    elif isinstance(value, str) and (found := _OWN_FILE.fullmatch(value)):
        yield found[1]
