"""Columns of a step that a run has whose data.train names several sources: what each of them contributes."""

import statistics
from collections.abc import Mapping, Sequence
from typing import NotRequired, TypedDict

from asyncrl.controller.turn_metrics import num_calls
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
    by_source: dict[str, list[Group]] = {}
    for group in groups:
        by_source.setdefault(group.task.source(), []).append(group)
    found: Sources = {
        "correct_mean_by_source": {
            source: mean
            for source, own in sorted(by_source.items())
            if (mean := mean_correctness(own)) is not None
        },
        "groups_share_by_source": {
            source: len(own) / len(groups) for source, own in sorted(by_source.items())
        },
    }
    if has_turns:
        found["tool_use_share_by_source"] = _means(
            {
                source: [num_calls(t) > 0 for group in own for t, _ in group.graded_samples()]
                for source, own in by_source.items()
            }
        )
    return found


def mean_correctness(groups: Sequence[Group]) -> float | None:
    """Mean over groups of the mean correctness of their samples: each row counts once, however many samples
    adaptive groups and faults leave it. None without a verdict."""
    scored = [
        [score.correctness for score in group.sampled_scores().values() if score.correctness is not None]
        for group in groups
    ]
    means = [statistics.fmean(each) for each in scored if each]
    return statistics.fmean(means) if means else None


def _means(values: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {source: statistics.fmean(each) for source, each in sorted(values.items()) if each}
