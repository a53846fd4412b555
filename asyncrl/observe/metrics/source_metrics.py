"""Columns of a step by source, where `data.train` names several, and of pilots of adaptive groups."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NotRequired, TypedDict

from asyncrl.observe.metrics.turn_metrics import num_calls
from asyncrl.replay.group import Group


class Pilots(TypedDict):
    """Groups whose pilots were graded since the last step, those that are dropped too; shares are None where
    there was none."""

    pilots_stopped: int
    pilots_stopped_share: float | None
    pilots_stopped_share_by_source: NotRequired[dict[str, float]]


class PilotMeter:
    """Hears of each decision about a pilot; read once per step."""

    def __init__(self, *, has_sources: bool) -> None:
        self._has_sources = has_sources
        self._num_decided: Counter[str] = Counter()
        self._num_stopped: Counter[str] = Counter()

    def decided(self, group: Group, is_extended: bool) -> None:
        source = group.task.source()
        self._num_decided[source] += 1
        self._num_stopped[source] += not is_extended

    def read(self) -> Pilots:
        """The decisions since the last call."""
        decided, stopped = self._num_decided, self._num_stopped
        self._num_decided, self._num_stopped = Counter(), Counter()
        found: Pilots = {
            "pilots_stopped": stopped.total(),
            "pilots_stopped_share": stopped.total() / decided.total() if decided else None,
        }
        if self._has_sources:
            found["pilots_stopped_share_by_source"] = {
                source: stopped[source] / number for source, number in sorted(decided.items())
            }
        return found


class Sources(TypedDict):
    """Source -> value, of the sampled trajectories with a verdict in a batch's new groups. A source without
    any is left out."""

    correct_mean_by_source: dict[str, float]
    groups_share_by_source: dict[str, float]
    tool_use_share_by_source: NotRequired[dict[str, float]]


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
