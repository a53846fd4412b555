"""A comparison for a terminal: recipes, what each group reached, which is better."""

import json
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console
from rich.text import Text

from asyncrl.observe.metrics.formats import NOTHING, compact, duration, exact_share
from asyncrl.observe.terminal.live import printable
from asyncrl.observe.terminal.table import Table, print_table
from asyncrl.readers.compare.run_comparison import Comparison, GroupRow, RunRow
from asyncrl.system.rounding import as_percent, fixed

LACKING = "(no such key)"


def print_comparison(comparison: Comparison, console: Console) -> None:
    heads = [_heading(group) for group in comparison["groups"]]
    print_table(Table("", ["recipe", *heads], list(_recipe_rows(comparison))), console)
    console.print()
    print_table(Table("", ["result", *heads], list(_result_rows(comparison))), console)
    for pair in comparison["pairs"]:
        console.print()
        for contest in pair["contests"]:
            line = f"{contest['name']}, {contest['measure']}: {contest['text']}"
            console.print(Text(printable(line)), soft_wrap=True)
    console.print()
    for remark in (*comparison["remarks"], comparison["method"]):
        console.print(Text(printable(remark)), style="dim", soft_wrap=True)


def _heading(group: GroupRow) -> str:
    if len(group["runs"]) == 1:
        return group["label"]
    return f"{group['label']} ({len(group['runs'])} seeds: {', '.join(map(str, group['seeds']))})"


def _recipe_rows(comparison: Comparison) -> Iterator[list[str]]:
    for row in comparison["recipe"]:
        values = [row["values"].get(group["label"], LACKING) for group in comparison["groups"]]
        yield [row["key"], *(v if isinstance(v, str) else json.dumps(v, default=str) for v in values)]
    if not comparison["recipe"]:
        yield ["no key differs"]


def _result_rows(comparison: Comparison) -> Iterator[list[str]]:
    groups = comparison["groups"]
    members = [[run for run in comparison["runs"] if run["group"] == group["label"]] for group in groups]
    yield ["held-out accuracy", *(_last(group, rows) for group, rows in zip(groups, members, strict=True))]
    for name, text in _ROWS:
        # Equal texts of the runs of a group once.
        cells = [", ".join(dict.fromkeys(map(text, rows))) for rows in members]
        if any(cell != NOTHING for cell in cells):
            yield [name, *cells]


def _last(group: GroupRow, rows: Sequence[RunRow]) -> str:
    found = group["accuracy"]
    if found is None:
        return NOTHING
    share = exact_share(found["mean"], found["low"], found["high"])
    last = [row["last"] for row in rows if row["last"] is not None]
    if len(last) == 1:
        return f"{share} at step {last[0]['step']}"
    return f"{share}: {', '.join(fixed(100 * row['greedy_accuracy'], 1) for row in last)}"


def _sampled(row: RunRow, name: str) -> str:
    last = row["last"] or {}
    share = exact_share(*(last.get(f"{name}_{end}") for end in ("at_k", "low", "high")))
    return share if share == NOTHING else f"{name}@{last['k']} {share}"


def _cut(row: RunRow) -> str:
    share = (row["last"] or {}).get("cut_share")
    return NOTHING if share is None else as_percent(share, 1)


_ROWS: Sequence[tuple[str, Callable[[RunRow], str]]] = (
    ("samples, correct", lambda row: _sampled(row, "avg")),
    ("samples, any correct", lambda row: _sampled(row, "pass")),
    ("response tokens", lambda row: compact((row["last"] or {}).get("response_tokens_mean"))),
    ("cut at the limit", _cut),
    ("steps", lambda row: f"{row['steps']:,}"),
    ("tokens generated", lambda row: compact(row["tokens_generated"])),
    ("tokens trained", lambda row: compact(row["tokens_trained"])),
    ("training time", lambda row: duration(row["seconds"])),
)
