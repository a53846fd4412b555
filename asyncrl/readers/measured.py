"""The results of `asyncrl eval` on a run's models, from the file in the run folder that keeps them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from asyncrl.journal.kept_answers import ANSWERS, KeptResult, ShownAnswers, read_results
from asyncrl.observe.metrics.sample_curves import Compared, compare_rows
from asyncrl.observe.terminal.model_differences import comparison_table
from asyncrl.observe.terminal.table import Table
from asyncrl.run.metrics_file import Row
from asyncrl.system.places import ANSWERS as ANSWERS_FILE

BASE = "base"
LARGE = ("tallies", "curves", "tasks", ANSWERS, "greedy_scores", "avg_scores", "pass_scores")
"""Columns of a result with an entry for each task, or for each k."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The last results of models on one evaluation set, all asked and graded alike."""

    name: str
    models: list[str]
    """Labels; the base model first."""
    rows: list[Row]
    """One for each model, as `asyncrl eval --json` has them."""
    seconds: float
    """Unix time of the newest."""
    compared: Compared | None
    """The curves of those that were sampled; None without any."""

    def table(self) -> Table:
        return comparison_table(self.models, self.rows)

    def answers(self) -> list[tuple[str, ShownAnswers | None]]:
        """Label of each model, and the answers that were kept as text; None of results that have none."""
        return [(label, row.get(ANSWERS)) for label, row in zip(self.models, self.rows, strict=True)]

    def short_rows(self) -> list[Row]:
        """The rows without what has an entry for each task."""
        return [{name: value for name, value in row.items() if name not in LARGE} for row in self.rows]


def read_measured(run_folder: Path) -> list[Measured]:
    """The evaluation set that was measured last comes first. Raises InputError."""
    found = [_measured(each) for each in _alike(read_results(run_folder / ANSWERS_FILE))]
    return sorted(found, key=lambda measured: -measured.seconds)


def _alike(results: Sequence[KeptResult]) -> Iterator[list[KeptResult]]:
    def key(result: KeptResult) -> tuple[str, str]:
        return result.name, result.settings

    for _, group in groupby(sorted(results, key=key), key=key):
        yield sorted(group, key=_order)


def _order(result: KeptResult) -> tuple[bool, int, str]:
    """The base model, then steps by their number, then the others."""
    word, _, rest = result.label.partition(" ")
    number = rest.partition(" ")[0]
    is_step = word == "step" and number.isdecimal()
    return result.label != BASE, int(number) if is_step else 2**62, result.label


def _measured(results: Sequence[KeptResult]) -> Measured:
    labels = [result.label for result in results]
    rows = [result.result for result in results]
    return Measured(
        results[0].name,
        labels,
        rows,
        max(result.seconds for result in results),
        compare_rows(list(zip(labels, rows, strict=True))),
    )
