"""Figures of an evaluation for each source of its tasks, where they come from several."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from asyncrl.evaluation.result import GradedResponse, Groups, correct_of, greedy_result, sampled_result
from asyncrl.records import Task

GREEDY = (
    *("greedy_accuracy", "greedy_low", "greedy_high"),
    *("tool_use_share", "tool_use_low", "tool_use_high"),
)
SAMPLED = (
    *("avg_at_k", "avg_low", "avg_high"),
    *("sampled_tool_use_share", "sampled_tool_use_low", "sampled_tool_use_high"),
)


def numbers_by_source(tasks: Sequence[Task], answers: Groups, samples: Groups, k: int) -> dict[str, float]:
    """ "COLUMN_by_source_SOURCE" -> its value; empty where all tasks are of one source.

    `answers` are the most likely ones and `samples` k per task, both in the order of `tasks`, or empty. A
    source without verdicts is left out.
    """
    if len({task.source() for task in tasks}) < 2:
        return {}
    found: dict[str, float] = {}
    for source, groups in _split(tasks, answers):
        if any(map(correct_of, groups)):
            found |= _named(source, greedy_result(groups), GREEDY)
    for source, groups in _split(tasks, samples):
        if any(len(correct_of(group)) >= k for group in groups):
            found |= _named(source, sampled_result(groups, k), SAMPLED)
    return found


def _named(source: str, figures: Mapping[str, Any], names: Sequence[str]) -> dict[str, float]:
    return {f"{name}_by_source_{source}": figures[name] for name in names if name in figures}


def _split(tasks: Sequence[Task], groups: Groups) -> Iterator[tuple[str, list[Sequence[GradedResponse]]]]:
    """(source, groups of its tasks)."""
    by_source: dict[str, list[Sequence[GradedResponse]]] = {}
    for task, group in zip(tasks, groups, strict=bool(groups)):
        by_source.setdefault(task.source(), []).append(group)
    yield from by_source.items()
