"""The results of `asyncrl eval` on the run: models side by side, and their curves over k."""

import functools
from pathlib import Path
from typing import Any

from asyncrl.readers.page.runs import Run, stamp
from asyncrl.readers.report.answers import Measured, read_measured
from asyncrl.system.places import ANSWERS

MOST_KEPT = 50
"""Runs whose curves stay computed: those of many tasks take a second."""


def read_evaluations(run: Run) -> list[dict[str, Any]]:
    """For each evaluation set its title, a table of words, and the curves of `compared` (null without)."""
    stamps = tuple(stamp(run.folder / name) for name in (ANSWERS, f"{ANSWERS}-wal"))
    return _read(run.folder, stamps)


@functools.lru_cache(maxsize=MOST_KEPT)
def _read(folder: Path, stamps: tuple[str, ...]) -> list[dict[str, Any]]:
    """`stamps` change with the file."""
    return [_shown(measured) for measured in read_measured(folder)]


def _shown(measured: Measured) -> dict[str, Any]:
    table = measured.table()
    return {
        "name": measured.name,
        "title": table.title,
        "header": list(table.header),
        "rows": [list(row) for row in table.rows],
        "seconds": measured.seconds,
        "compared": measured.compared,
    }
