"""Models side by side on one benchmark: shares with intervals, the difference to the first model, lengths.

Differences are paired over the tasks that both models have verdicts on. The rows are those of
metrics.jsonl and of `asyncrl eval --json`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from asyncrl.observe.metrics.estimates import Difference, paired_difference
from asyncrl.observe.metrics.formats import NOTHING, compact
from asyncrl.observe.terminal.table import Table
from asyncrl.system.rounding import as_percent, fixed, signed

Row = Mapping[str, Any]
MEASURES = (("greedy", "greedy_accuracy"), ("avg", "avg_at_k"), ("pass", "pass_at_k"))
"""How its bounds and scores are called in a row, and its value."""
DIFFERENCE = "difference"


def comparison_title(row: Row) -> str:
    """The benchmark, how many tasks it has and how they were asked."""
    temperature = row.get("temperature") or 0.0
    k = row.get("k")
    ways = ["greedy"] if row.get("greedy_accuracy") is not None else []
    ways += [f"{k} samples at temperature {temperature:g}"] if k is not None else []
    left_out = f" ({row['num_left_out']} rows left out)" if row.get("num_left_out") else ""
    return (
        f"{row['benchmark']}: {row['num_tasks']:,} tasks{left_out}, template {row['template']}, "
        f"{' and '.join(ways)}, at most {row['max_new_tokens']:,} tokens"
    )


def comparison_header(models: Sequence[str]) -> list[str]:
    """An empty corner, then each model; behind each but the first, its difference to the first."""
    first, *others = models
    return ["", first, *(title for model in others for title in (model, DIFFERENCE))]


def comparison_rows(results: Sequence[Row | None]) -> list[list[str]]:
    """A measure each, with a cell per column of `comparison_header`; None is a model without a result."""
    known = [row for row in results if row is not None]
    rows = [
        list(_cells(_title(name, known), name, value, results))
        for name, value in MEASURES
        if _has(known, value)
    ]
    rows.append(_plain("response tokens", results, lambda row: compact(row["response_tokens_mean"])))
    rows.append(_plain("cut at the limit", results, lambda row: _share(row["cut_share"])))
    if any(row["num_faults"] for row in known):
        rows.append(_plain("faults, not counted", results, lambda row: f"{row['num_faults']:,}"))
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


def _has(known: Sequence[Row], value: str) -> bool:
    return any(row.get(value) is not None for row in known)


def _title(name: str, known: Sequence[Row]) -> str:
    k = next((row["k"] for row in known if row.get("k") is not None), None)
    return "greedy accuracy" if name == "greedy" else f"{name}@{k}"


def _cells(title: str, name: str, value: str, results: Sequence[Row | None]) -> Iterator[str]:
    yield title
    first = results[0]
    for index, row in enumerate(results):
        yield NOTHING if row is None else _with_interval(row.get(value), row, name)
        if index:
            found = None if row is None or first is None else differences(first, row).get(name)
            yield NOTHING if found is None else _difference(found)


def _plain(title: str, results: Sequence[Row | None], text: Callable[[Row], str]) -> list[str]:
    cells = [NOTHING if row is None else text(row) for row in results]
    return [title, cells[0], *(cell for each in cells[1:] for cell in (each, ""))]


def _share(share: float) -> str:
    return as_percent(share, 1)


def _with_interval(share: float | None, row: Row, name: str) -> str:
    if share is None:
        return NOTHING
    return f"{_share(share)} [{fixed(100 * row[f'{name}_low'], 1)}, {fixed(100 * row[f'{name}_high'], 1)}]"


def _difference(found: Difference) -> str:
    return f"{signed(100 * found.mean, 1)} [{signed(100 * found.low, 1)}, {signed(100 * found.high, 1)}]"
