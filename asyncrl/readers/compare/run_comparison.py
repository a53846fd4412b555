"""Runs side by side: what differs in their recipes, what each reached at which cost, which is better.

The typed dictionaries are the JSON of `asyncrl compare --json` and of the page. Shares are in [0, 1], times
in seconds. The first group is the one that all others are compared with.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean
from typing import Any, TypedDict

from rich.console import Console
from rich.text import Text

from asyncrl.errors import InputError
from asyncrl.observe.terminal.table import (
    NOTHING,
    Table,
    compact,
    duration,
    exact_share,
    print_table,
    printable,
)
from asyncrl.readers.compare.contest import Contest, Difference, NothingInCommon, contests
from asyncrl.readers.compare.groups import Group, grouped, interval_of, repeats
from asyncrl.readers.compare.recorded import HELDOUT, RecordedRun, differing
from asyncrl.run.metrics_file import Row
from asyncrl.system.words import as_percent, fixed


# Costs at a step are summed over the rows of its steps in metrics.jsonl. Seconds are those of training steps:
# starting up and waiting for evaluations after the last step are not in them. What a run lost and trained
# again after a crash is not counted twice.
class Cost(TypedDict):
    tokens_generated: float
    tokens_trained: float
    """Tokens as the loss saw them: repeated groups again."""
    seconds: float


class Point(Cost):
    """A held-out evaluation of a run, or of a group at a step that all its runs evaluated (their mean)."""

    step: int
    greedy_accuracy: float
    low: float
    """Ends of the 95% interval: over seeds where there are several, else over tasks."""
    high: float


def cost_at(run: RecordedRun, step: int) -> Cost:
    """Cost of all steps up to `step`."""
    rows = [row for row in run.metrics.steps if row["step"] <= step]
    return {
        "tokens_generated": sum(
            (row.get("rollout_tokens_per_second") or 0.0) * (row.get("step_seconds") or 0.0) for row in rows
        ),
        "tokens_trained": sum(row.get("num_tokens") or 0.0 for row in rows),
        "seconds": sum(row.get("step_seconds") or 0.0 for row in rows),
    }


def curve(group: Group) -> list[Point]:
    """Points at the steps that all runs of the group evaluated."""
    rows = [{int(row["step"]): row for row in reversed(run.evaluations())} for run in group.runs]
    steps = sorted(set.intersection(*(set(each) for each in rows)))
    return [_point(group, step, [each[step] for each in rows]) for step in steps]


def _point(group: Group, step: int, rows: list[Row]) -> Point:
    accuracy = interval_of(rows)
    costs = [cost_at(run, step) for run in group.runs]
    return {
        "step": step,
        "tokens_generated": fmean(cost["tokens_generated"] for cost in costs),
        "tokens_trained": fmean(cost["tokens_trained"] for cost in costs),
        "seconds": fmean(cost["seconds"] for cost in costs),
        "greedy_accuracy": accuracy.mean,
        "low": accuracy.low,
        "high": accuracy.high,
    }


METHOD = (
    "Intervals of differences are of 95% and paired: each task is compared with itself (Agresti and Min "
    "2005). With several seeds on both sides, variances of seeds and tasks add up (Satterthwaite 1946). No "
    "difference is clear that an exact test of its tasks (sign flips; McNemar's for right and wrong answers) "
    "finds within chance. Of a single run the interval is Wilson's over tasks, of several seeds Student's "
    "over seeds."
)


class RunRow(TypedDict):
    """Results and costs of one run."""

    label: str
    folder: str
    group: str
    """Label of its group: runs whose recipes differ in seed, name and run_folder alone, each seed once."""
    name: str
    seed: int
    steps: int
    last: dict[str, Any] | None
    """The last held-out evaluation, as its row in metrics.jsonl."""
    machines: list[str]
    """Machines that it ran on, in words; empty where nothing says."""
    tokens_generated: int
    tokens_trained: int
    """Counts of the journal, each token once; without a journal, sums over steps."""
    seconds: float
    """Duration of the training steps."""


class GroupRow(TypedDict):
    label: str
    runs: list[str]
    seeds: list[int]
    accuracy: Difference | None
    """Greedy, of the last evaluations: mean, low, high. Over seeds by Student's t; of one run, over tasks."""
    curve: list[Point]


class DifferingKey(TypedDict):
    key: str
    values: dict[str, Any]
    """Label of the group -> value; a list where its runs differ. A key that a recipe lacks is missing."""


class Pair(TypedDict):
    """One group against the first one."""

    first: str
    second: str
    contests: list[Contest]
    """Held-out first, then benchmarks that both measured."""


class Comparison(TypedDict):
    groups: list[GroupRow]
    runs: list[RunRow]
    recipe: list[DifferingKey]
    pairs: list[Pair]
    remarks: list[str]
    """Limits of the comparison, a sentence each."""
    method: str


def compare(runs: Sequence[RecordedRun]) -> Comparison:
    """Raises InputError for fewer than two runs, and for two groups that were asked no task in common."""
    if len(runs) < 2:
        raise InputError(f"{len(runs)} run is nothing to compare. Name two or more run folders.")
    groups = grouped(runs)
    first, *others = groups
    remarks = [remark for run in runs for remark in run.remarks]
    pairs = [_pair(first, other, remarks) for other in others]
    return {
        "groups": [_group_row(group) for group in groups],
        "runs": [_run_row(run, group.label) for group in groups for run in group.runs],
        "recipe": _differing(groups),
        "pairs": pairs,
        "remarks": [*remarks, *_remarks_on_groups(groups), *_remarks_on_runs(runs)],
        "method": METHOD,
    }


def _group_row(group: Group) -> GroupRow:
    found = group.accuracy()
    return {
        "label": group.label,
        "runs": [run.label for run in group.runs],
        "seeds": [run.seed for run in group.runs],
        "accuracy": None if found is None else {"mean": found.mean, "low": found.low, "high": found.high},
        "curve": curve(group),
    }


def _run_row(run: RecordedRun, group: str) -> RunRow:
    steps = int(run.metrics.steps[-1]["step"]) if run.metrics.steps else 0
    cost = cost_at(run, steps)
    generated, trained = run.tokens()
    return {
        "label": run.label,
        "folder": str(run.folder),
        "group": group,
        "name": run.name,
        "seed": run.seed,
        "steps": steps,
        "last": run.last_evaluation(),
        "machines": run.machines(),
        "tokens_generated": round(cost["tokens_generated"]) if generated is None else generated,
        "tokens_trained": round(cost["tokens_trained"]) if trained is None else trained,
        "seconds": cost["seconds"],
    }


def _differing(groups: Sequence[Group]) -> list[DifferingKey]:
    recipes = [run.recipe for group in groups for run in group.runs]
    found: list[DifferingKey] = []
    for key in differing(recipes):
        values: dict[str, Any] = {}
        for group in groups:
            known = [run.recipe[key] for run in group.runs if key in run.recipe]
            if known:
                values[group.label] = known if len(group.runs) > 1 and _differ(known) else known[0]
        # The same seeds on both sides are no difference.
        if len(values) < len(groups) or _differ([*values.values()]):
            found.append({"key": key, "values": values})
    return found


def _differ(values: Sequence[Any]) -> bool:
    return any(value != values[0] for value in values)


def _pair(first: Group, second: Group, remarks: list[str]) -> Pair:
    """Adds to `remarks` which evaluations could not be compared. Raises NothingInCommon of held-out tasks."""
    runs = [*first.runs, *second.runs]
    found: list[Contest] = []
    for name in (HELDOUT, *dict.fromkeys(row["benchmark"] for row in runs[0].metrics.benchmarks)):
        measured = {run.label: row for run in runs if (row := _measured(run, name)) is not None}
        if len(measured) < len(runs):
            continue
        try:
            compared = contests(first, second, name, measured)
        except NothingInCommon as error:
            if name == HELDOUT:
                raise
            remarks.append(str(error))
            continue
        if not compared:
            remarks.append(
                f"{first.label} and {second.label} are not compared on {name}: at least one run has no "
                f"answers per task."
            )
        found += compared
    return {"first": first.label, "second": second.label, "contests": found}


def _measured(run: RecordedRun, name: str) -> Row | None:
    """The last held-out evaluation, or the benchmark after training."""
    if name == HELDOUT:
        return run.last_evaluation()
    rows = [row for row in run.metrics.benchmarks if row["benchmark"] == name and row["when"] == "after"]
    return rows[-1] if rows else None


def _remarks_on_groups(groups: Sequence[Group]) -> Iterator[str]:
    if len(groups) == 1:
        yield (
            f"All runs are one group, {groups[0].label}, whose recipes differ in their seed alone: there is "
            f"nothing to compare it with."
        )
    single = [group.label for group in groups if len(group.runs) == 1]
    if len(single) == len(groups):
        yield (
            "Each side has one seed: intervals say how sure the difference between these runs is, not "
            "between their recipes. Runs that differ in seed alone are grouped."
        )
        return
    for label in single:
        yield (
            f"{label} has one seed: how much it depends on its seed is not in the interval of its difference "
            f"to a side whose seeds are averaged."
        )


def _remarks_on_runs(runs: Sequence[RecordedRun]) -> Iterator[str]:
    for label, first in repeats(runs).items():
        yield (
            f"{label} has the recipe and seed of {first}: it is a repeat, and a side of its own. What "
            f"differs between both is neither recipe nor seed, but the order in which responses came."
        )
    last = {run.label: row["step"] for run in runs if (row := run.last_evaluation()) is not None}
    for run in runs:
        if run.label not in last:
            yield f"{run.label} has no held-out evaluation yet."
    if len(set(last.values())) > 1:
        steps = ", ".join(f"{label} at step {step}" for label, step in last.items())
        yield f"The last evaluations are of different steps: {steps}."
    machines = {run.label: " then ".join(run.machines()) for run in runs}
    known = {label: words for label, words in machines.items() if words}
    if len(set(known.values())) > 1:
        each = "; ".join(f"{label} on {words}" for label, words in known.items())
        yield f"Seconds are not comparable: the machines differ ({each})."


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
