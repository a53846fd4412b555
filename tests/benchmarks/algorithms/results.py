"""The rows of cells that were run: one JSON object a line, refused where they are another recipe's."""

import json
from collections.abc import Sequence
from pathlib import Path

from asyncrl.errors import InputError
from tests.benchmarks.algorithms.plan import Row

RESULTS = Path(__file__).with_name("results.jsonl")


def read_rows(path: Path = RESULTS) -> list[Row]:
    """The rows of a file, none of a missing one. Raises InputError that names the line where it is no row,
    where its cell is there twice, where it was run under other keys than its cell has today, and where it
    began from another base model."""
    rows: list[Row] = []
    if not path.exists():
        return rows
    seen = set()
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        row = _row(path, number, line)
        if row.cell in seen:
            raise InputError(f"{path}:{number}: {row.cell.name()} is there a second time. Remove one.")
        if row.digest != row.cell.digest():
            raise InputError(
                f"{path}:{number}: {row.cell.name()} was run under another recipe: digest {row.digest}, "
                f"today's is {row.cell.digest()}. Name another file with --results, or restore the keys of "
                f"the recipe, of arms.py and plan.py."
            )
        check_base(row, rows, f"{path}:{number}: ")
        seen.add(row.cell)
        rows.append(row)
    return rows


def check_base(row: Row, rows: Sequence[Row], where: str = "") -> None:
    """Raises InputError where the greedy accuracy before training is not that of the other rows, of any arm
    and seed: another base model cannot be compared with theirs."""
    start = next((other.greedy[0] for other in rows if other.noise == row.noise), row.greedy[0])
    if row.greedy[0] != start:
        raise InputError(
            f"{where}{row.cell.name()} began at a greedy accuracy of {row.greedy[0]}, other rows at {start}: "
            f"its base model is another one. Restore the base model, or name another file with --results."
        )


def _row(path: Path, number: int, line: str) -> Row:
    try:
        raw = json.loads(line)
        raw["heldout"] = [(int(version), float(accuracy)) for version, accuracy in raw["heldout"]]
        raw["greedy"] = tuple(raw["greedy"])
        return Row(**raw)
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(
            f"{path}:{number} is no row of the ablation ({error}). Remove the line; its cell is run again."
        ) from None


def append_row(path: Path, row: Row) -> None:
    """One write, so that a process that is killed leaves a whole line or none."""
    with path.open("a", encoding="utf-8") as file:
        file.write(row.line())
