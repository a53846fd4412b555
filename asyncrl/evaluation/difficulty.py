"""How often the policy solves each row: measured by sampling, kept as it comes, and shown as a histogram."""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asyncrl.errors import InputError
from asyncrl.evaluation.evaluator import Evaluator
from asyncrl.evaluation.result import GradedResponse
from asyncrl.records import Task

BAR = 40
"""Characters of the longest bar."""
TENTHS = 10


@dataclass(frozen=True, slots=True)
class Measured:
    """The samples of one row that got a verdict."""

    num_graded: int
    pass_rate: float | None
    """Mean raw score; None where every sample was a fault."""

    @classmethod
    def of(cls, responses: Sequence[GradedResponse]) -> "Measured":
        found = [r.score.correctness for r in responses if r.score.correctness is not None]
        return cls(len(found), sum(found) / len(found) if found else None)


@dataclass
class MeasuredFile:
    """Rows measured so far, one JSON line each: a measurement that was broken off continues behind them."""

    path: Path
    found: dict[str, Measured] = field(default_factory=dict)
    """By task id."""

    @classmethod
    def open(cls, path: Path, settings: Mapping[str, Any]) -> "MeasuredFile":
        """Raises InputError for a file of other settings, and for one that cannot be written."""
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()
        measured = cls(path)
        try:
            lines = path.read_text(encoding="utf-8").split("\n") if path.exists() else []
            if not lines or not lines[0]:
                path.write_text(f"{json.dumps({'settings': digest})}\n", encoding="utf-8")
                return measured
            # A line that was cut off is measured again, and so is overwritten.
            whole = lines[:-1]
            path.write_text("".join(f"{line}\n" for line in whole), encoding="utf-8")
        except OSError as error:
            raise InputError(
                f"{path} could not be written: {error.strerror or error}. Name a folder with --out."
            ) from error
        try:
            known = json.loads(whole[0])["settings"]
            for line in whole[1:]:
                row = json.loads(line)
                measured.found[row["task_id"]] = Measured(row["num_graded"], row["pass_rate"])
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise InputError(f"{path} is no file of a measurement: {error!r}. Remove it.") from error
        if known != digest:
            raise InputError(
                f"{path} holds a measurement that was broken off, with another model, other rows or other "
                f"settings. Remove it to measure from the start, or name another folder with --out."
            )
        return measured

    def add(self, rows: Mapping[str, Measured]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            for task_id, row in rows.items():
                file.write(f"{json.dumps({'task_id': task_id, **dataclasses.asdict(row)})}\n")
        self.found.update(rows)


async def measure(
    tasks: Iterable[Task],
    evaluator: Evaluator,
    file: MeasuredFile,
    *,
    num_samples: int,
    rows_at_once: int,
    told: Callable[[int], None],
) -> None:
    """Samples the tasks that `file` lacks, some at a time. `told` gets how many more rows are measured.
    Raises EvaluationFailed."""
    waiting: list[Task] = []

    async def ask() -> None:
        answers = await evaluator.answer(waiting, num_samples=num_samples, is_greedy=False)
        rows = (Measured.of(responses) for responses in answers)
        file.add({task.task_id: row for task, row in zip(waiting, rows, strict=True)})
        told(len(waiting))
        waiting.clear()

    for task in tasks:
        if task.task_id in file.found:
            continue
        waiting.append(task)
        if len(waiting) >= rows_at_once:
            await ask()
    if waiting:
        await ask()


def histogram(rates: Sequence[float]) -> list[tuple[str, int]]:
    """(pass rates, rows): rows that are never solved, tenths in between, rows that always are."""
    counts = [0] * TENTHS
    for rate in rates:
        if 0.0 < rate < 1.0:
            counts[min(TENTHS - 1, int(rate * TENTHS))] += 1
    between = [(f"{i / TENTHS:.1f} to {(i + 1) / TENTHS:.1f}", count) for i, count in enumerate(counts)]
    return [("0", sum(rate <= 0.0 for rate in rates)), *between, ("1", sum(rate >= 1.0 for rate in rates))]


def histogram_lines(rates: Sequence[float]) -> list[str]:
    """The histogram with a bar for each count; `rates` are one at least."""
    found = histogram(rates)
    most = max(count for _, count in found)
    bars = ("█" * round(BAR * count / most) for _, count in found)
    return [f"{name:<12}{count:>9,}  {bar}".rstrip() for (name, count), bar in zip(found, bars, strict=True)]


def chance_of_signal(rates: Sequence[float], num_samples: int) -> float:
    """Mean chance 1 - s^N - (1 - s)^N that a group of N answers to a row has two rewards: about what a step
    would have. Measured rates are rounded to samples, so for rows at 0 and 1 it is too low."""
    chances = [1.0 - s**num_samples - (1.0 - s) ** num_samples for s in rates]
    return sum(chances) / len(chances)
