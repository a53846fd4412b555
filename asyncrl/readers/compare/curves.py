"""Held-out accuracy over what it cost: optimizer steps, tokens generated and trained, seconds, dollars.

Costs at a step are summed over the rows of its steps in metrics.jsonl. Seconds are those of training steps:
starting up and waiting for evaluations after the last step are not in them. What a run lost and trained again
after a crash is not counted twice.
"""

from collections.abc import Sequence
from typing import TypedDict

from asyncrl.observe.metrics.metrics_file import Row
from asyncrl.readers.compare.bootstrap import Interval
from asyncrl.readers.compare.groups import Group, interval_of
from asyncrl.readers.compare.recorded import RecordedRun


class Point(TypedDict):
    """A held-out evaluation of a run, or of a group at a step that all its runs evaluated (their mean)."""

    step: int
    tokens_generated: float
    tokens_trained: float
    """Tokens as the loss saw them: repeated groups again."""
    seconds: float
    dollars: float | None
    greedy_accuracy: float
    low: float
    """Ends of the 95% interval: over seeds where there are several, else over tasks."""
    high: float
    response_tokens_mean: float | None


class Cost(TypedDict):
    tokens_generated: float
    tokens_trained: float
    seconds: float


def cost_at(run: RecordedRun, step: int) -> Cost:
    """Cost of all steps up to `step`."""
    rows = [row for row in run.metrics.steps if row["step"] <= step]
    return {
        "tokens_generated": sum(_generated(row) for row in rows),
        "tokens_trained": sum(row.get("num_tokens") or 0.0 for row in rows),
        "seconds": sum(row.get("step_seconds") or 0.0 for row in rows),
    }


def curve(group: Group, prices: Sequence[float | None]) -> list[Point]:
    """Points at the steps that all runs of the group evaluated; `prices` per hour are in the runs' order."""
    rows = [{int(row["step"]): row for row in reversed(run.evaluations())} for run in group.runs]
    steps = sorted(set.intersection(*(set(each) for each in rows)))
    found = [_point(group, step, [each[step] for each in rows], prices) for step in steps]
    return [point for point in found if point is not None]


def _point(group: Group, step: int, rows: list[Row], prices: Sequence[float | None]) -> Point | None:
    accuracy = interval_of(rows)
    if accuracy is None:
        return None
    costs = [cost_at(run, step) for run in group.runs]
    lengths = [row.get("response_tokens_mean") for row in rows]
    known = [length for length in lengths if length is not None]
    seconds = _mean([cost["seconds"] for cost in costs])
    spent = [None if p is None else cost["seconds"] / 3600 * p for cost, p in zip(costs, prices, strict=True)]
    dollars = [each for each in spent if each is not None]
    return {
        "step": step,
        "tokens_generated": _mean([cost["tokens_generated"] for cost in costs]),
        "tokens_trained": _mean([cost["tokens_trained"] for cost in costs]),
        "seconds": seconds,
        "dollars": _mean(dollars) if len(dollars) == len(spent) else None,
        "greedy_accuracy": accuracy.mean,
        **_ends(accuracy),
        "response_tokens_mean": _mean(known) if len(known) == len(lengths) else None,
    }


class _Ends(TypedDict):
    low: float
    high: float


def _ends(interval: Interval) -> _Ends:
    """Within [0, 1]: Student's interval does not know that it is about a share."""
    return {"low": max(0.0, interval.low), "high": min(1.0, interval.high)}


def _generated(row: Row) -> float:
    return float((row.get("rollout_tokens_per_second") or 0.0) * (row.get("step_seconds") or 0.0))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
