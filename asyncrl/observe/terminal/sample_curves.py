"""pass@k, maj@k and best@k of models as tables of words and as a plot of characters."""

import math
from collections.abc import Sequence
from itertools import pairwise

from asyncrl.observe.metrics.formats import NOTHING, exact_share
from asyncrl.observe.metrics.sample_curves import TITLES, Compared, Contrast, Curve, chosen
from asyncrl.observe.terminal.table import Table
from asyncrl.system.rounding import as_percent, fixed, signed

HEIGHT = 11
WIDTH = 56
MARKS = "o•+x*#"
"""The mark of each model in a plot; later models share the last one."""


def curve_tables(name: str, compared: Compared) -> list[Table]:
    """A table for each measure of the evaluation set `name`: k = 1, 2, 4, ... and the largest."""
    return [_table(f"{name}, {TITLES[measure]}", measure, compared) for measure in compared["curves"]]


def curve_plot(compared: Compared) -> list[str]:
    """Lines of a plot of pass@k over k, on a logarithmic axis; none for a single k."""
    drawn = [
        (label, curve)
        for label, curve in zip(compared["models"], compared["curves"].get("pass", []), strict=False)
        if curve is not None
    ]
    most = max((len(curve["mean"]) for _, curve in drawn), default=0)
    if most < 2:
        return []
    low, high = _ends([value for _, curve in drawn for value in curve["mean"]])
    cells = [[" "] * WIDTH for _ in range(HEIGHT)]
    # The first model is drawn last: where both are, it is seen.
    for place, (_, curve) in reversed(list(enumerate(drawn))):
        for column, value in _columns(curve["mean"], most):
            cells[round((high - value) / (high - low) * (HEIGHT - 1))][column] = MARKS[
                min(place, len(MARKS) - 1)
            ]
    levels = [high - (high - low) * line / (HEIGHT - 1) for line in range(HEIGHT)]
    names = [as_percent(level) if line % 5 == 0 else "" for line, level in enumerate(levels)]
    lines = [f"{name:>5} │{''.join(row).rstrip()}" for name, row in zip(names, cells, strict=True)]
    legend = ", ".join(f"{MARKS[min(i, len(MARKS) - 1)]} {label}" for i, (label, _) in enumerate(drawn))
    return [f"pass@k over k: {legend}", *lines, f"{'':>5} └{'─' * WIDTH}", f"{'':>7}{_axis(most)}"]


def _table(title: str, measure: str, compared: Compared) -> Table:
    curves, contrasts = compared["curves"][measure], compared["contrasts"][measure]
    most = max(len(curve["mean"]) for curve in curves if curve is not None)
    header = ["k"]
    for place, label in enumerate(compared["models"]):
        header += [label, "difference"] if place else [label]
    rows = []
    for k in chosen(most):
        row = [str(k)]
        for place, (curve, contrast) in enumerate(zip(curves, contrasts, strict=True)):
            row += [_share(curve, k), _difference(contrast, k)] if place else [_share(curve, k)]
        rows.append(row)
    return Table(title, header, rows, _left_out(curves))


def _share(curve: Curve | None, k: int) -> str:
    if curve is None or k > len(curve["mean"]):
        return NOTHING
    return exact_share(curve["mean"][k - 1], curve["low"][k - 1], curve["high"][k - 1])


def _difference(found: Contrast | None, k: int) -> str:
    at = next((each for each in found["differences"] if each["k"] == k), None) if found else None
    if at is None:
        return NOTHING
    mean, low, high = (signed(100 * share, 1) for share in (at["mean"], at["low"], at["high"]))
    return f"{mean} [{low}, {high}]"


def _left_out(curves: Sequence[Curve | None]) -> str:
    """A note where large k are of fewer tasks than small ones."""
    for curve in curves:
        if curve is not None and curve["num_tasks"][-1] < curve["num_tasks"][0]:
            first, last = curve["num_tasks"][0], curve["num_tasks"][-1]
            return f"Faults leave {last:,} of {first:,} tasks with {len(curve['mean'])} verdicts."
    return ""


def _ends(values: Sequence[float]) -> tuple[float, float]:
    """Whole tenths around the values."""
    low, high = math.floor(10 * min(values) + 1e-9) / 10, math.ceil(10 * max(values) - 1e-9) / 10
    return (low, high) if high > low else (max(0.0, low - 0.1), min(1.0, max(0.0, low - 0.1) + 0.2))


def _column(k: float, most: int) -> int:
    return round(math.log(k) / math.log(most) * (WIDTH - 1))


def _columns(means: Sequence[float], most: int) -> list[tuple[int, float]]:
    """(column, value), straight between two k that lie columns apart."""
    found = {_column(k, most): value for k, value in enumerate(means, start=1)}
    between = []
    for (left, before), (right, after) in pairwise(sorted(found.items())):
        for column in range(left + 1, right):
            between.append((column, before + (after - before) * (column - left) / (right - left)))
    return [*found.items(), *between]


def _axis(most: int) -> str:
    line = [" "] * (WIDTH + len(str(most)))
    for k in chosen(most):
        place, text = _column(k, most), fixed(k)
        if all(cell == " " for cell in line[max(0, place - 1) : place + len(text) + 1]):
            line[place : place + len(text)] = text
    return "".join(line).rstrip()
