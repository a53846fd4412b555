"""From an open group to a ready one where rows are learned: what follows the prompt is in the row."""

from dataclasses import dataclass

from asyncrl.records import Finish, Score, Segment
from asyncrl.replay.group import Group
from asyncrl.replay.queue import ReplayQueue
from asyncrl.tasks.demonstration import Demonstration

GIVEN = "given"
"""Outcome of a response that a row gave: no verifier has judged it."""


@dataclass(frozen=True)
class RowCompletion:
    """In place of the rollout loop's body."""

    queue: ReplayQueue

    async def run(self, group: Group) -> None:
        """Leaves the group ready. One that a crash left open keeps the parts that the journal has."""
        (trajectory,) = group.trajectories
        row: Demonstration = group.task.reference
        if trajectory.finish is None:
            self._append(group, row)
        if trajectory.trajectory_id not in group.scores:
            score = Score(GIVEN, None, 0.0, None, "", 0.0)
            self.queue.score(group, trajectory, score, "")
        self.queue.make_ready(group, {trajectory.trajectory_id: 1.0})

    def _append(self, group: Group, row: Demonstration) -> None:
        (trajectory,) = group.trajectories
        newest = trajectory.newest_version()
        version = group.admitted_version if newest is None else newest
        parts = row.segments(version)
        left = parts[len(trajectory.segments) :]
        for place, part in enumerate(left, start=1):
            if isinstance(part, Segment):
                finish = Finish.STOP if place == len(left) else None
                self.queue.append(group, trajectory, [part], finish)
            else:
                trajectory.turn_finish = Finish.STOP
                self.queue.observe(group, trajectory, part)
