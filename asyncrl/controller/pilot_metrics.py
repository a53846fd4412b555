"""Columns of a step that a run has whose groups are adaptive: groups that ended with their pilot.

What they saved is not known: the tokens of trajectories that were never sampled have no length.
"""

from collections import Counter
from typing import NotRequired, TypedDict

from asyncrl.replay.group import Group


class Pilots(TypedDict):
    """Groups whose pilots were graded since the last step, those that are dropped too; shares are None where
    there was none."""

    pilots_stopped: int
    """Groups that ended with their pilot."""
    pilots_stopped_share: float | None
    pilots_stopped_share_by_source: NotRequired[dict[str, float]]
    """Only where data.train names several sources; one without a graded pilot is left out."""


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
