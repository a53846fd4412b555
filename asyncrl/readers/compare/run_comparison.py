"""Runs side by side: what differs in their recipes, what each reached at which cost, which is better.

The typed dictionaries are the JSON of `asyncrl compare --json` and of the page. Shares are in [0, 1], times
in seconds. The first group is the one that all others are compared with.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from asyncrl.errors import InputError
from asyncrl.observe.metrics.metrics_file import Row
from asyncrl.readers.compare.answers import HELDOUT, AnswersOf, Scores, common
from asyncrl.readers.compare.bootstrap import Resampling
from asyncrl.readers.compare.contest import (
    Contest,
    Difference,
    NothingInCommon,
    contests,
    difference_of,
)
from asyncrl.readers.compare.curves import Point, cost_at, curve
from asyncrl.readers.compare.groups import Group, grouped, repeats
from asyncrl.readers.compare.recipes import differing
from asyncrl.readers.compare.recorded import RecordedRun

METHOD = (
    "Intervals of differences are of 95% and paired: each task is compared with itself (Agresti and Min "
    "2005). With several seeds on both sides, tasks and seeds are drawn with replacement, {num_resamples:,} "
    "times from seed {seed} (Owen 2007), and the ends are stretched by Student's t for few seeds. No "
    "difference is clear that an exact test of its tasks (sign flips; McNemar's for right and wrong answers) "
    "finds within chance. Of a single run the interval is Wilson's over tasks, of several seeds Student's "
    "over seeds."
)
RESAMPLES_PER_STEP = 2_000
"""Most resamples for the interval at each step of a curve."""


class Accuracy(TypedDict):
    step: int
    value: float
    low: float
    high: float
    """Wilson's 95% interval over tasks."""
    num_tasks: int


class Sampled(TypedDict):
    """The last evaluation that sampled."""

    step: int
    k: int
    avg_at_k: float
    avg_low: float
    avg_high: float
    pass_at_k: float
    pass_low: float
    pass_high: float


class RunRow(TypedDict):
    """Results and costs of one run."""

    label: str
    folder: str
    group: str
    """Label of its group: runs whose recipes differ in seed, name and run_folder alone, each seed once."""
    name: str
    seed: int
    steps: int
    last: Accuracy | None
    """Held-out, greedy."""
    best: Accuracy | None
    """The highest, of the first step that reached it. Chosen by the same tasks, so it is too high."""
    sampled: Sampled | None
    response_tokens_mean: float | None
    """Mean length at the last evaluation, greedy."""
    cut_share: float | None
    machines: list[str]
    """Machines that it ran on, in words; empty where nothing says."""
    tokens_generated: int
    tokens_trained: int
    """Counts of the journal, each token once; without a journal, sums over steps."""
    seconds: float
    """Duration of the training steps."""
    dollars: float | None


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


class StepDifference(Difference):
    """Greedy accuracy at a step that both groups evaluated, over common tasks."""

    step: int
    num_tasks: int


class Pair(TypedDict):
    """One group against the first one."""

    first: str
    second: str
    contests: list[Contest]
    """Held-out first, then benchmarks that both measured."""
    steps: list[StepDifference]
    """Empty where a run has no answers per task."""


class Comparison(TypedDict):
    groups: list[GroupRow]
    runs: list[RunRow]
    recipe: list[DifferingKey]
    pairs: list[Pair]
    remarks: list[str]
    """Limits of the comparison, a sentence each."""
    method: str


def compare(
    runs: Sequence[RecordedRun],
    *,
    prices: Sequence[float | None] | None = None,
    resampling: Resampling | None = None,
) -> Comparison:
    """`prices` per hour of each run's machines. Raises InputError for fewer than two runs, and for two groups
    that were asked no task in common."""
    if len(runs) < 2:
        raise InputError(f"{len(runs)} run is nothing to compare. Name two or more run folders.")
    resampling = resampling or Resampling()
    price_of = dict(zip((run.label for run in runs), prices or [None] * len(runs), strict=True))
    groups = grouped(runs)
    first, *others = groups
    group_of = {run.label: group.label for group in groups for run in group.runs}
    remarks = list(itertools.chain.from_iterable(run.remarks for run in runs))
    pairs = [_pair(first, other, resampling, remarks) for other in others]
    remarks += [_words_of_repeat(label, first) for label, first in repeats(runs).items()]
    remarks += _remarks(groups, pairs)
    remarks += _remarks_on_machines(runs)
    return {
        "groups": [_group_row(group, [price_of[run.label] for run in group.runs]) for group in groups],
        "runs": [_run_row(run, group_of[run.label], price_of[run.label]) for run in runs],
        "recipe": _differing(groups),
        "pairs": pairs,
        "remarks": remarks,
        "method": METHOD.format(num_resamples=resampling.num_resamples, seed=resampling.seed),
    }


def _group_row(group: Group, prices: Sequence[float | None]) -> GroupRow:
    accuracy = group.accuracy()
    return {
        "label": group.label,
        "runs": [run.label for run in group.runs],
        "seeds": [run.seed for run in group.runs],
        "accuracy": None
        if accuracy is None
        else {"mean": accuracy.mean, "low": max(0.0, accuracy.low), "high": min(1.0, accuracy.high)},
        "curve": curve(group, prices),
    }


def _run_row(run: RecordedRun, group: str, price: float | None) -> RunRow:
    evaluations, last = run.evaluations(), run.last_evaluation()
    best = max(evaluations, key=lambda row: row["greedy_accuracy"], default=None)
    sampled = [row for row in evaluations if row.get("avg_at_k") is not None]
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
        "last": None if last is None else _accuracy(last),
        "best": None if best is None else _accuracy(best),
        "sampled": _sampled(sampled[-1]) if sampled else None,
        "response_tokens_mean": None if last is None else last.get("response_tokens_mean"),
        "cut_share": None if last is None else last.get("cut_share"),
        "machines": run.machines(),
        "tokens_generated": round(cost["tokens_generated"]) if generated is None else generated,
        "tokens_trained": round(cost["tokens_trained"]) if trained is None else trained,
        "seconds": cost["seconds"],
        "dollars": None if price is None else cost["seconds"] / 3600 * price,
    }


def _accuracy(row: Row) -> Accuracy:
    return {
        "step": row["step"],
        "value": row["greedy_accuracy"],
        "low": row["greedy_low"],
        "high": row["greedy_high"],
        "num_tasks": row["num_tasks"],
    }


def _sampled(row: Row) -> Sampled:
    return {
        "step": row["step"],
        "k": row["k"],
        "avg_at_k": row["avg_at_k"],
        "avg_low": row["avg_low"],
        "avg_high": row["avg_high"],
        "pass_at_k": row["pass_at_k"],
        "pass_low": row["pass_low"],
        "pass_high": row["pass_high"],
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


def _pair(first: Group, second: Group, resampling: Resampling, remarks: list[str]) -> Pair:
    """Adds to `remarks` which benchmarks could not be compared. Raises NothingInCommon of held-out tasks."""
    runs = [*first.runs, *second.runs]
    found: list[Contest] = []
    last = {run.label: run.last_evaluation() for run in runs}
    rows = {label: row for label, row in last.items() if row is not None}
    if len(rows) == len(runs):
        found += contests(first, second, HELDOUT, rows, resampling)
    for name in dict.fromkeys(row["benchmark"] for row in runs[0].metrics.benchmarks):
        measured = {run.label: row for run in runs if (row := _after(run, name)) is not None}
        if len(measured) == len(runs):
            try:
                found += contests(first, second, name, measured, resampling)
            except NothingInCommon as error:
                remarks.append(str(error))
    steps = _steps(first, second, resampling)
    return {"first": first.label, "second": second.label, "contests": found, "steps": steps}


def _after(run: RecordedRun, name: str) -> Row | None:
    rows = [row for row in run.metrics.benchmarks if row["benchmark"] == name and row["when"] == "after"]
    return rows[-1] if rows else None


def _steps(first: Group, second: Group, resampling: Resampling) -> list[StepDifference]:
    runs = [*first.runs, *second.runs]
    answers = AnswersOf(runs, HELDOUT)
    recorded = [answers.greedy_by_version(run) for run in runs]
    counted = [{int(row["step"]) for row in run.evaluations()} for run in runs]
    at_steps = Resampling(min(resampling.num_resamples, RESAMPLES_PER_STEP), resampling.seed)
    found: list[StepDifference] = []
    for step in sorted(set.intersection(*counted, *(set(each) for each in recorded))):
        sides = [each[step] for each in recorded]
        if num_tasks := len(common(sides).tasks):
            difference = _difference_of(first, sides, at_steps)
            found.append({"step": step, "num_tasks": num_tasks, **difference})
    return found


def _difference_of(first: Group, scores: Sequence[Scores], resampling: Resampling) -> Difference:
    num_first = len(first.runs)
    return difference_of(scores[:num_first], scores[num_first:], resampling)


def _remarks(groups: Sequence[Group], pairs: Sequence[Pair]) -> list[str]:
    found = []
    for group in groups:
        for run in group.runs:
            if run.last_evaluation() is None:
                found.append(f"{run.label} has no held-out evaluation yet.")
    last = {
        run.label: int(row["step"])
        for group in groups
        for run in group.runs
        if (row := run.last_evaluation()) is not None
    }
    if len(set(last.values())) > 1:
        steps = ", ".join(f"{label} at step {step}" for label, step in last.items())
        found.append(f"The last evaluations are of different steps: {steps}.")
    if len(groups) == 1:
        found.append(
            f"All runs are one group, {groups[0].label}, whose recipes differ in their seed alone: there is "
            f"nothing to compare it with."
        )
    if all(len(group.runs) == 1 for group in groups):
        found.append(
            "Each side has one seed: intervals say how sure the difference between these runs is, not "
            "between their recipes. Runs that differ in seed alone are grouped."
        )
    found += _remarks_on_pairs(groups, pairs)
    return found


def _words_of_repeat(label: str, first: str) -> str:
    return (
        f"{label} has the recipe and seed of {first}: it is a repeat, and a side of its own. What differs "
        f"between both is neither recipe nor seed, but the order in which responses came."
    )


def _remarks_on_machines(runs: Sequence[RecordedRun]) -> list[str]:
    machines = {run.label: " then ".join(run.machines()) for run in runs}
    known = {label: words for label, words in machines.items() if words}
    if len(set(known.values())) < 2:
        return []
    each = "; ".join(f"{label} on {words}" for label, words in known.items())
    return [f"Seconds and dollars are not comparable: the machines differ ({each})."]


def _remarks_on_pairs(groups: Sequence[Group], pairs: Sequence[Pair]) -> list[str]:
    found = []
    by_label: Mapping[str, Group] = {group.label: group for group in groups}
    for pair in pairs:
        first, second = by_label[pair["first"]], by_label[pair["second"]]
        unpaired = {c["name"] for c in pair["contests"] if c["way"] == "not paired"}
        if unpaired:
            found.append(
                f"{first.label} and {second.label}: at least one run has no answers per task of "
                f"{' and '.join(sorted(unpaired))}, so that difference is of the shares alone, not paired."
            )
        sizes = {len(first.runs), len(second.runs)}
        if len(sizes) > 1 and 1 in sizes:
            single = first if len(first.runs) == 1 else second
            found.append(
                f"{single.label} has one seed: how much it depends on its seed is not in the interval of its "
                f"difference to the other side, whose seeds are averaged."
            )
    return found
