"""The results of `asyncrl eval` on the run: models side by side, and their curves over k."""

from typing import Any

from asyncrl.readers.measured import Measured, read_measured
from asyncrl.readers.page.runs import Run


def read_evaluations(run: Run) -> list[dict[str, Any]]:
    """For each evaluation set its title, a table of words, and the curves of `compared` (null without)."""
    return [_shown(measured) for measured in read_measured(run.folder)]


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
