"""A comparison for a terminal: recipes, what each group reached, which is better."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from asyncrl.observe.metrics.formats import NOTHING, compact, duration
from asyncrl.observe.terminal.live import printable
from asyncrl.readers.compare.contest import Contest
from asyncrl.readers.compare.run_comparison import Accuracy, Comparison, GroupRow, RunRow
from asyncrl.system.rounding import as_percent, fixed, signed

LACKING = "(no such key)"


def print_comparison(comparison: Comparison, console: Console) -> None:
    groups = comparison["groups"]
    console.print(_table("recipe", groups, _recipe_rows(comparison)))
    console.print()
    console.print(_table("result", groups, _result_rows(comparison)))
    for pair in comparison["pairs"]:
        console.print()
        for contest in pair["contests"]:
            for line in contest_lines(contest):
                console.print(Text(printable(line)), soft_wrap=True)
    if comparison["remarks"]:
        console.print()
    for remark in comparison["remarks"]:
        console.print(Text(printable(remark)), style="dim", soft_wrap=True)
    console.print()
    console.print(Text(comparison["method"]), style="dim", soft_wrap=True)


def contest_lines(contest: Contest) -> Iterator[str]:
    """The sentence with what it is about, and the interval over seeds where there are several."""
    yield f"{contest['name']}, {contest['measure']}: {contest['text']}"
    seeds = contest["over_seeds"]
    if seeds is not None:
        yield (
            f"  over seeds alone ({seeds['num_first']} and {seeds['num_second']}): {contest['second']} - "
            f"{contest['first']} = {signed(100 * seeds['mean'], 1)} points, "
            f"95% {signed(100 * seeds['low'], 1)} to {signed(100 * seeds['high'], 1)}"
        )


def _table(title: str, groups: Sequence[GroupRow], rows: Iterator[list[str]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column(title, header_style="bold")
    for group in groups:
        table.add_column(Text(printable(_heading(group))), header_style="bold", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    return table


def _heading(group: GroupRow) -> str:
    if len(group["runs"]) == 1:
        return group["label"]
    return f"{group['label']} ({len(group['runs'])} seeds: {', '.join(map(str, group['seeds']))})"


def _recipe_rows(comparison: Comparison) -> Iterator[list[str]]:
    for row in comparison["recipe"]:
        cells = [_value(row["values"], group["label"]) for group in comparison["groups"]]
        yield [row["key"], *cells]
    if not comparison["recipe"]:
        yield ["no key differs"]


def _value(values: dict[str, Any], label: str) -> str:
    if label not in values:
        return LACKING
    value = values[label]
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _result_rows(comparison: Comparison) -> Iterator[list[str]]:
    groups = comparison["groups"]
    runs = {row["label"]: row for row in comparison["runs"]}
    members = [[runs[label] for label in group["runs"]] for group in groups]
    yield [
        "held-out accuracy, last",
        *(_last(group, rows) for group, rows in zip(groups, members, strict=True)),
    ]
    for name, text in _ROWS:
        cells = [_joined(rows, text) for rows in members]
        if any(cell != NOTHING for cell in cells):
            yield [name, *cells]


def _last(group: GroupRow, rows: Sequence[RunRow]) -> str:
    if len(rows) == 1:
        return _accuracy(rows[0]["last"])
    found = group["accuracy"]
    each = ", ".join(NOTHING if r["last"] is None else fixed(100 * r["last"]["value"], 1) for r in rows)
    return NOTHING if found is None else f"{_share(found['mean'], found['low'], found['high'])}: {each}"


def _joined(rows: Sequence[RunRow], text: Callable[[RunRow], str]) -> str:
    """The text of each run, equal texts once."""
    return ", ".join(dict.fromkeys(map(text, rows)))


def _accuracy(found: Accuracy | None) -> str:
    if found is None:
        return NOTHING
    return f"{_share(found['value'], found['low'], found['high'])} at step {found['step']}"


def _share(value: float, low: float, high: float) -> str:
    return f"{as_percent(value, 1)} [{fixed(100 * low, 1)}, {fixed(100 * high, 1)}]"


def _sampled(row: RunRow, name: str) -> str:
    found = row["sampled"]
    if found is None:
        return NOTHING
    values = (found["avg_at_k"], found["avg_low"], found["avg_high"])
    if name == "pass":
        values = (found["pass_at_k"], found["pass_low"], found["pass_high"])
    return f"{name}@{found['k']} {_share(*values)}"


def _percent(share: float | None) -> str:
    return NOTHING if share is None else as_percent(share, 1)


_ROWS: Sequence[tuple[str, Callable[[RunRow], str]]] = (
    ("held-out accuracy, best", lambda row: _accuracy(row["best"])),
    ("samples, correct", lambda row: _sampled(row, "avg")),
    ("samples, any correct", lambda row: _sampled(row, "pass")),
    ("response tokens", lambda row: compact(row["response_tokens_mean"])),
    ("cut at the limit", lambda row: _percent(row["cut_share"])),
    ("steps", lambda row: f"{row['steps']:,}"),
    ("tokens generated", lambda row: compact(row["tokens_generated"])),
    ("tokens trained", lambda row: compact(row["tokens_trained"])),
    ("training time", lambda row: duration(row["seconds"])),
    ("dollars", lambda row: NOTHING if row["dollars"] is None else f"{row['dollars']:,.2f}"),
)
