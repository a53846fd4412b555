"""A group: the trajectories of one task that share a baseline, from admission to its one end.

open -> ready -> taken -> trained, or dropped(reason) from open or ready. The queue alone changes the state.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from asyncrl.records import PolicyVersion, Score, Task, Trajectory


class GroupState(StrEnum):
    OPEN = "open"
    READY = "ready"
    TAKEN = "taken"
    TRAINED = "trained"
    DROPPED = "dropped"


class DropReason(StrEnum):
    """Why tokens that were generated will never be trained."""

    FAULT = "fault"
    """No verdict: the trajectory left before the baseline, or its group, with fewer than two left."""
    UNCONFIRMED = "unconfirmed"
    """Streamed by a server that broke off before it said which version had made them, or after their group
    was dropped."""
    NO_SIGNAL = "no_signal"
    """Raw correctness gave all its trajectories an advantage of 0: no gradient, and the recipe asks for
    others instead."""
    SERVER = "server"
    """Servers kept failing on this trajectory until its retries were spent."""
    STALE = "stale"
    """Its oldest token would have been older than rollout.abort_staleness at training."""
    OUTLIVED = "outlived"
    """Begun by one version and left to the next, by a crash or a stop, where rollout.interrupt is drain."""
    BASELINE = "baseline"
    """Greedy, generated for its reward alone."""


@dataclass(slots=True)
class Group:
    """Mutable while open; afterwards only `state`, `step`, `num_uses` and `reason` change."""

    group_id: int
    """Admission order, from 0 without gaps; also the position of its task in the data order."""
    task: Task
    admitted_version: PolicyVersion
    """The trainer's version at admission: no token of the group is older."""
    trajectories: list[Trajectory]
    state: GroupState = GroupState.OPEN
    scores: dict[str, Score] = field(default_factory=dict)
    """Trajectory id -> score, filled as verdicts arrive."""
    advantages: dict[str, float] = field(default_factory=dict)
    """Trajectory id -> advantage, set when the group becomes ready; a fault has none."""
    step: int | None = None
    """The step that took it first."""
    num_uses: int = 0
    """Steps that took it: more than one with replay.repeated_groups_per_batch."""
    reason: DropReason | None = None

    def num_tokens(self) -> int:
        """Confirmed response tokens."""
        return sum(trajectory.num_response_tokens() for trajectory in self.trajectories)

    def oldest_version(self) -> PolicyVersion:
        """The oldest version that made one of its tokens, or the admitting one while it has none."""
        versions = [segment.version for t in self.trajectories for segment in t.segments]
        return min(versions, default=self.admitted_version)


def trajectory_id(group_id: int, sample: int) -> str:
    """Fixed length, because an engine may match request ids by prefix."""
    return f"{group_id:08d}-{sample:02d}"
