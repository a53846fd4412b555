"""Runs whose recipes differ in their seed alone, as one group: its numbers, with an interval over seeds.

A group has each seed once. A second run with a recipe and seed repeats the first one: what differs between
them is neither recipe nor seed, so it is a side of its own, together with the second runs of other seeds.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from asyncrl.readers.compare.intervals import Interval, over_seeds
from asyncrl.readers.compare.recipes import without_seed
from asyncrl.readers.compare.recorded import RecordedRun
from asyncrl.run.metrics_file import Row

_ENDINGS = "-_. 0123456789/~"


@dataclass(frozen=True)
class Group:
    label: str
    runs: list[RecordedRun]

    def accuracy(self) -> Interval | None:
        """Greedy accuracy of each run's last evaluation: over seeds if there are several, else over tasks."""
        rows = [row for run in self.runs if (row := run.last_evaluation()) is not None]
        return interval_of(rows) if len(rows) == len(self.runs) else None


def interval_of(rows: Sequence[Row]) -> Interval:
    """Greedy accuracy, a row per run: Student's over several runs, the row's own for a single one."""
    if len(rows) == 1:
        (row,) = rows
        return Interval(row["greedy_accuracy"], row["greedy_low"], row["greedy_high"])
    return over_seeds([float(row["greedy_accuracy"]) for row in rows])


def grouped(runs: Sequence[RecordedRun]) -> list[Group]:
    """Groups in the order of their first runs."""
    alike: dict[tuple[str, int], list[RecordedRun]] = {}
    times: Counter[tuple[str, int]] = Counter()
    for run in runs:
        recipe = without_seed(run.recipe)
        alike.setdefault((recipe, times[recipe, run.seed]), []).append(run)
        times[recipe, run.seed] += 1
    labels: list[str] = []
    for members in alike.values():
        label = _label([run.label for run in members])
        taken = {*labels, *(run.label for run in runs if run not in members)}
        labels.append(label if label and label not in taken else members[0].label)
    return [Group(label, members) for label, members in zip(labels, alike.values(), strict=True)]


def repeats(runs: Sequence[RecordedRun]) -> dict[str, str]:
    """Label of a run -> label of the first one with its recipe and seed; of runs that are not the first."""
    firsts: dict[tuple[str, int], str] = {}
    found = {run.label: firsts.setdefault((without_seed(run.recipe), run.seed), run.label) for run in runs}
    return {label: first for label, first in found.items() if label != first}


def _label(names: list[str]) -> str:
    """The common beginning of the names of its runs."""
    if len(names) == 1:
        return names[0]
    length = 0
    while all(length < len(name) and name[length] == names[0][length] for name in names):
        length += 1
    return names[0][:length].rstrip(_ENDINGS).removesuffix("seed").rstrip(_ENDINGS)
