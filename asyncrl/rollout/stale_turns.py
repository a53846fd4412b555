"""Names the tools that make trajectories too stale to train. No formula tells it before a run, which does not
know how long its steps take."""

import logging
from dataclasses import dataclass

from asyncrl.records import Trajectory

log = logging.getLogger(__name__)


@dataclass(slots=True)
class StaleTurns:
    """Warns of the first trajectory that had waited for tools and was dropped as stale, then whenever their
    number has doubled."""

    num_left: int = 0
    """Since the start."""
    _next_told: int = 1

    def left(self, trajectory: Trajectory, tool_seconds: float) -> None:
        """Its group was dropped as stale, after environment and tools had worked for it that long."""
        if tool_seconds <= 0:
            return
        self.num_left += 1
        if self.num_left < self._next_told:
            return
        self._next_told = 2 * self.num_left
        log.warning(
            "trajectory %s was dropped as stale (rollout.abort_staleness) in turn %d, after %.3g s of its "
            "environment and tools; so were %d trajectories since the start. Where tools take longer than "
            "the steps that the limit allows, no trajectory of many turns is trained: raise "
            "rollout.abort_staleness with rollout.max_staleness, or lower turns.max_turns or "
            "turns.max_tool_seconds.",
            trajectory.trajectory_id,
            sum(line.num_observations() for line in trajectory.lines()) + 1,
            tool_seconds,
            self.num_left,
        )
