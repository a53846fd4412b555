"""A group: the trajectories of one task that share a baseline, from admission to its one end.

open -> ready -> taken -> trained, or dropped(reason) from open or ready. The queue alone changes the state.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from asyncrl.journal.packing import split_runs
from asyncrl.journal.queue_state import StoredGroup
from asyncrl.records import (
    Columns,
    DropReason,
    PolicyVersion,
    Score,
    Task,
    Trajectory,
    TurnAdvantages,
    may_teach,
    oldest_version,
)

TaskOf = Callable[[str, str], Task]
"""Finds the task of a task id and a prompt; raises InputError when the data no longer holds it."""


class GroupState(StrEnum):
    OPEN = "open"
    READY = "ready"
    TAKEN = "taken"
    TRAINED = "trained"
    DROPPED = "dropped"


@dataclass(slots=True)
class Group:
    """Mutable while open; afterwards only `state`, `taken_version`, `num_uses` and `reason` change."""

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
    turn_advantages: dict[str, TurnAdvantages] = field(default_factory=dict)
    """Trajectory id -> advantages of its turns, branch after branch, where they differ."""
    columns: dict[str, Columns] = field(default_factory=dict)
    """Id of a trajectory or branch -> columns beside its segments', filled as they arrive."""
    taken_version: PolicyVersion | None = None
    """The trainer's when it took the group first: the weights that were first trained on it."""
    num_uses: int = 0
    """Batches that held it: more than one with replay.repeated_groups_per_batch."""
    reason: DropReason | None = None

    @property
    def title(self) -> str:
        """In words for people."""
        return f"group {self.group_id}"

    def source(self) -> str:
        return self.task.source()

    def num_tokens(self) -> int:
        """Confirmed tokens that were sampled."""
        return sum(trajectory.num_sampled_in_all() for trajectory in self.trajectories)

    def sampled_scores(self) -> dict[str, Score]:
        """Trajectory id -> score, of the trajectories that were sampled; a greedy one is no sample."""
        greedy = {trajectory.trajectory_id for trajectory in self.trajectories if trajectory.is_greedy}
        return {name: score for name, score in self.scores.items() if name not in greedy}

    def graded_samples(self) -> list[tuple[Trajectory, Score]]:
        """The trajectories that were sampled, each with its score, a fault too."""
        scores = self.sampled_scores()
        return [(t, scores[t.trajectory_id]) for t in self.trajectories if t.trajectory_id in scores]

    def may_teach(self) -> bool:
        """Whether a token has an advantage other than 0."""
        return may_teach(self.advantages, self.turn_advantages)

    def oldest_version(self) -> PolicyVersion:
        """The oldest version that made one of its tokens, or the admitting one while it has none."""
        return oldest_version(self.trajectories, self.admitted_version)

    def trainable_tokens(self) -> int:
        """Sampled tokens of the trajectories that are still part of it: faults left when it became ready."""
        if self.state is GroupState.OPEN:
            return self.num_tokens()
        return sum(t.num_sampled_in_all() for t in self.trajectories if t.trajectory_id in self.advantages)

    def branch_advantages(self) -> dict[str, float]:
        """The first advantage of each branch that may have another one than its trajectory."""
        found = {}
        for trajectory in self.trajectories:
            runs = self.turn_advantages.get(trajectory.trajectory_id, [])
            lengths = [line.num_sampled_tokens() for line in trajectory.lines()]
            for branch, own in zip(trajectory.branches, split_runs(runs, lengths)[1:], strict=True):
                if own:
                    found[branch.trajectory_id] = own[0][1]
        return found


def restored_group(stored: StoredGroup, task_of: TaskOf) -> Group:
    """The group that a journal holds, with its task."""
    return Group(
        stored.group_id,
        task_of(stored.task_id, stored.prompt),
        stored.admitted_version,
        stored.trajectories,
        GroupState(stored.state),
        stored.scores,
        stored.advantages,
        stored.turn_advantages,
        stored.columns,
        stored.taken_version,
        stored.num_uses,
    )


def trajectory_id(group_id: int, sample: int) -> str:
    """Fixed length, because an engine may match request ids by prefix."""
    return f"{group_id:08d}-{sample:02d}"
