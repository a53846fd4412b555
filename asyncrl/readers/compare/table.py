"""A comparison for a terminal: recipes, what each group reached, which is better."""

import json
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console
from rich.text import Text

from asyncrl.observe.metrics.formats import NOTHING, compact, duration, exact_share
from asyncrl.observe.terminal.live import printable
from asyncrl.observe.terminal.table import Table, print_table
from asyncrl.readers.compare.run_comparison import Comparison, GroupRow, Pair, RunRow
from asyncrl.system.words import as_percent, fixed

LACKING = "(no such key)"


def tables_of(comparison: Comparison) -> tuple[Table, Table]:
    """The keys that differ; what each group reached."""
    heads = [_heading(group) for group in comparison["groups"]]
    return (
        Table("", ["recipe", *heads], list(_recipe_rows(comparison))),
        Table("", ["result", *heads], list(_result_rows(comparison))),
    )


def sentences_of(pair: Pair) -> list[str]:
    """Which side is better, by each measure."""
    return [f"{contest['name']}, {contest['measure']}: {contest['text']}" for contest in pair["contests"]]


def print_comparison(comparison: Comparison, console: Console) -> None:
    recipe, results = tables_of(comparison)
    print_table(recipe, console)
    console.print()
    print_table(results, console)
    for pair in comparison["pairs"]:
        console.print()
        for line in sentences_of(pair):
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
