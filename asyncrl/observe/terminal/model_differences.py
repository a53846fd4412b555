"""Models side by side on one benchmark: shares with intervals, the difference to the first model, lengths.

Differences are paired over the tasks that both models have verdicts on. The rows are those of
metrics.jsonl and of `asyncrl eval --json`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from asyncrl.observe.metrics.estimates import Difference, paired_difference
from asyncrl.observe.metrics.formats import NOTHING, compact, exact_share
from asyncrl.observe.terminal.table import Table
from asyncrl.system.rounding import as_percent, signed

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
            yield NOTHING if found is None else _difference(found)


def _difference(found: Difference) -> str:
    return f"{signed(100 * found.mean, 1)} [{signed(100 * found.low, 1)}, {signed(100 * found.high, 1)}]"
