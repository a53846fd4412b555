"""From an open group to a ready one where rows are learned: what follows the prompt is in the row.

A pair is one trajectory: the chosen response is its own, the rejected one that of its branch.
"""

from dataclasses import dataclass

from asyncrl.loops.run_part import RunPart
from asyncrl.records import Finish, Score, Segment, Trajectory
from asyncrl.replay.branches import open_line
from asyncrl.replay.group import Group
from asyncrl.replay.queue import ReplayQueue
from asyncrl.tasks.demonstration import Demonstration, Pair

GIVEN = "given"
"""Outcome of a response that a row gave: no verifier has judged it."""


@dataclass(frozen=True)
class RowCompletion(RunPart):
    """In place of the rollout loop's body."""

    queue: ReplayQueue

    def needs_server(self) -> bool:
        return False

    async def run(self, group: Group) -> None:
        """Leaves the group ready. One that a crash left open keeps the parts that the journal has."""
        (trajectory,) = group.trajectories
        row: Demonstration | Pair = group.task.reference
        if trajectory.finish is None:
            for place, line in enumerate(row.lines()):
                if place == len(trajectory.lines()):
                    open_line(self.queue, group, trajectory, line.prompt_tokens)
                self._append(group, trajectory.lines()[place], line)
            self.queue.append(group, trajectory, [], Finish.STOP)
        if trajectory.trajectory_id not in group.scores:
            self.queue.score(group, trajectory, Score(GIVEN, None, 0.0, None, "", 0.0), "")
        name = trajectory.trajectory_id
        # As the page shows them: which side is pushed up, and which down.
        sides = [(line.num_sampled_tokens(), 1.0 - 2.0 * i) for i, line in enumerate(trajectory.lines())]
        self.queue.make_ready(group, {name: 1.0}, {name: sides} if len(sides) > 1 else {})

    def _append(self, group: Group, line: Trajectory, row: Demonstration) -> None:
        newest = line.newest_version()
        parts = row.segments(group.admitted_version if newest is None else newest)
        for part in parts[len(line.segments) :]:
            if isinstance(part, Segment):
                self.queue.append(group, line, [part], None)
            else:
                line.turn_finish = Finish.STOP
                self.queue.observe(group, line, part)
