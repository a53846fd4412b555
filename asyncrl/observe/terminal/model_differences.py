"""Models side by side on one benchmark: shares with intervals, differences to the first model, curves
over k.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from asyncrl.observe.metrics.estimates import Difference, paired_difference
from asyncrl.observe.metrics.sample_curves import TITLES, Compared, Contrast, Curve, chosen
from asyncrl.observe.terminal.table import NOTHING, Table, compact, exact_share, in_points
from asyncrl.system.words import as_percent, fixed

Row = Mapping[str, Any]
MEASURES = (("greedy", "greedy_accuracy"), ("avg", "avg_at_k"), ("pass", "pass_at_k"))
"""How its bounds and scores are called in a row, and its value."""
PLAIN: Sequence[tuple[str, str, Callable[[float], str]]] = (
    ("response tokens", "response_tokens_mean", compact),
    ("cut at the limit", "cut_share", lambda share: as_percent(share, 1)),
    ("faults, not counted", "num_faults", lambda number: f"{number:,}" if number else NOTHING),
    ("kept from before", "num_kept", lambda number: f"{number:,}" if number else NOTHING),
)
"""Further rows: title, column, words of its value."""
CUTS = {"top_p": "top-p", "top_k": "top-k", "min_p": "min-p"}
"""Settings of samples that a row has where they are not the default, and their words."""
DIFFERENCE = "difference"
SHARES = (
    ("greedy accuracy", "greedy_accuracy", "greedy_low", "greedy_high"),
    ("avg@k", "avg_at_k", "avg_low", "avg_high"),
    ("tool use", "tool_use_share", "tool_use_low", "tool_use_high"),
    ("tool use of samples", "sampled_tool_use_share", "sampled_tool_use_low", "sampled_tool_use_high"),
)
"""Shares without differences: title, column, columns of the ends of its interval."""
BY_SOURCE = "_by_source_"


def comparison_title(row: Row) -> str:
    """The benchmark, how many tasks it has and how they were asked."""
    temperature = row.get("temperature") or 0.0
    k = row.get("k")
    ways = ["greedy"] if row.get("greedy_accuracy") is not None else []
    cuts = [f"{words} {row[name]:g}" for name, words in CUTS.items() if row.get(name) is not None]
    sampled = ", ".join([f"{k} samples at temperature {temperature:g}", *cuts])
    ways += [sampled] if k is not None else []
    penalty = row.get("repetition_penalty")
    penalised = "" if penalty is None else f", repetition penalty {penalty:g}"
    left_out = f" ({row['num_left_out']} rows left out)" if row.get("num_left_out") else ""
    return (
        f"{row['benchmark']}: {row['num_tasks']:,} tasks{left_out}, template {row['template']}, "
        f"{' and '.join(ways)}{penalised}, at most {row['max_new_tokens']:,} tokens"
    )


def comparison_header(models: Sequence[str], *, has_differences: bool = True) -> list[str]:
    """An empty corner, then each model; behind each but the first, its difference to the first."""
    first, *others = models
    added = (DIFFERENCE,) if has_differences else ()
    return ["", first, *(title for model in others for title in (model, *added))]


def comparison_rows(results: Sequence[Row | None], *, has_differences: bool = True) -> list[list[str]]:
    """A measure each that any model has, with a cell per column of `comparison_header`; None is a model
    without a result."""
    known = [row for row in results if row is not None]
    rows = [
        [_title(name, known), *_cells(name, value, results, has_differences)]
        for name, value in MEASURES
        if any(row.get(value) is not None for row in known)
    ]
    for title, *ends in _share_rows(known):
        cells = [exact_share(*((row or {}).get(column) for column in ends)) for row in results]
        rows.append(_without_differences(title, cells, has_differences))
    for title, name, words in PLAIN:
        cells = [NOTHING if row is None or row.get(name) is None else words(row[name]) for row in results]
        if any(cell != NOTHING for cell in cells):
            rows.append(_without_differences(title, cells, has_differences))
    return rows


def comparison_table(models: Sequence[str], results: Sequence[Row | None]) -> Table:
    """At least one model has a result."""
    title = comparison_title(next(row for row in results if row is not None))
    return Table(title, comparison_header(models), comparison_rows(results))


def differences(first: Row, second: Row) -> dict[str, Difference]:
    """Second - first, for each measure that both rows have scores of."""
    found = {}
    for name, _ in MEASURES:
        pairs = [
            (before, after)
            for before, after in zip(
                first.get(f"{name}_scores") or (), second.get(f"{name}_scores") or (), strict=False
            )
            if before is not None and after is not None
        ]
        if pairs:
            found[name] = paired_difference(*map(list, zip(*pairs, strict=True)))
    return found


def _share_rows(known: Sequence[Row]) -> Iterator[tuple[str, str, str, str]]:
    """As SHARES, those that any row has: the use of tools, then all of them for each source."""
    present = {column for row in known for column, value in row.items() if value is not None}
    for title, share, low, high in SHARES[2:]:
        # Without most likely answers both are those of the samples.
        if share in present and (title != "tool use" or "greedy_accuracy" in present):
            yield title, share, low, high
    for source in sorted({column.partition(BY_SOURCE)[2] for column in present if BY_SOURCE in column}):
        for title, *columns in SHARES:
            share, low, high = (f"{column}{BY_SOURCE}{source}" for column in columns)
            if share in present:
                words = _title("avg", known) if title == "avg@k" else title
                yield f"{source}: {words}", share, low, high


def _without_differences(title: str, cells: Sequence[str], has_differences: bool) -> list[str]:
    added = ("",) if has_differences else ()
    return [title, cells[0], *(text for cell in cells[1:] for text in (cell, *added))]


def _title(name: str, known: Sequence[Row]) -> str:
    k = next((row["k"] for row in known if row.get("k") is not None), None)
    return "greedy accuracy" if name == "greedy" else f"{name}@{k}"


def _cells(name: str, value: str, results: Sequence[Row | None], has_differences: bool) -> Iterator[str]:
    first = results[0]
    for index, row in enumerate(results):
        yield exact_share(*((row or {}).get(column) for column in (value, f"{name}_low", f"{name}_high")))
        if index and has_differences:
            found = None if row is None or first is None else differences(first, row).get(name)
            yield NOTHING if found is None else in_points(found.mean, found.low, found.high)


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
            row += [_share(curve, k), _difference_sample_curves(contrast, k)] if place else [_share(curve, k)]
        rows.append(row)
    return Table(title, header, rows, _left_out(curves))


def _share(curve: Curve | None, k: int) -> str:
    if curve is None or k > len(curve["mean"]):
        return NOTHING
    return exact_share(curve["mean"][k - 1], curve["low"][k - 1], curve["high"][k - 1])


def _difference_sample_curves(found: Contrast | None, k: int) -> str:
    at = next((each for each in found["differences"] if each["k"] == k), None) if found else None
    if at is None:
        return NOTHING
    return in_points(at["mean"], at["low"], at["high"])


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
