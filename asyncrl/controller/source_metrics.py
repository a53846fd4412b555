"""Columns of a step that a run has whose data.train names several sources: what each of them contributes."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NotRequired, TypedDict

from asyncrl.controller.turn_metrics import num_calls
from asyncrl.records import Score, Trajectory
from asyncrl.replay.group import Group


class Sources(TypedDict):
    """Source -> value, of the sampled trajectories with a verdict in a batch's new groups. A source without
    any is left out."""

    correct_mean_by_source: dict[str, float]
    groups_share_by_source: dict[str, float]
    """Share of the batch's new groups; a source that has none is left out."""
    tool_use_share_by_source: NotRequired[dict[str, float]]
    """Share of the trajectories that called a tool; only where trajectories have turns."""


def source_metrics(groups: Sequence[Group], *, has_turns: bool) -> Sources:
    by_source: dict[str, list[tuple[Trajectory, Score]]] = {}
    for group in groups:
        by_source.setdefault(group.task.source(), []).extend(group.graded_samples())
    correct = {
        source: [score.correctness for _, score in samples if score.correctness is not None]
        for source, samples in by_source.items()
    }
    num_groups = Counter(group.task.source() for group in groups)
    found: Sources = {
        "correct_mean_by_source": _means(correct),
        "groups_share_by_source": {
            source: count / len(groups) for source, count in sorted(num_groups.items())
        },
    }
    if has_turns:
        found["tool_use_share_by_source"] = _means(
            {source: [num_calls(t) > 0 for t, _ in samples] for source, samples in by_source.items()}
        )
    return found


def _means(values: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {source: statistics.fmean(each) for source, each in sorted(values.items()) if each}
