"""Held-out accuracy over what it cost: optimizer steps, tokens generated and trained, seconds.

Costs at a step are summed over the rows of its steps in metrics.jsonl. Seconds are those of training steps:
starting up and waiting for evaluations after the last step are not in them. What a run lost and trained again
after a crash is not counted twice.
"""

from statistics import fmean
from typing import TypedDict

from asyncrl.readers.compare.groups import Group, interval_of
from asyncrl.readers.compare.recorded import RecordedRun
from asyncrl.run.metrics_file import Row


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
        "tokens_generated": sum(map(_generated, rows)),
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


def _generated(row: Row) -> float:
    return float((row.get("rollout_tokens_per_second") or 0.0) * (row.get("step_seconds") or 0.0))
