"""Partial rollouts with oversampling (APRIL, Zhou et al. 2025, arxiv.org/abs/2509.18521).

A round generates `oversampling` times the groups of a batch. It is over as soon as a batch is ready: then
nothing is admitted and nothing streams until the trainer takes it; what is left keeps its prefix in the queue
and resumes with the newest weights, before anything new is admitted. When the trainer already waits, the
take comes at once and nothing is parked. A trajectory that waits for a tool holds no slot and is not parked:
its answer is recorded, and its next turn waits as all do.

The staleness bound holds as it is: parking only admits less than `ReplayQueue.can_admit` allows, and a parked
group stays live, so `policy.choose` counts it at its deadline as before. Nor can parking hold a batch up: a
round is over only while `choose` has a batch, that is, while every group that is due is ready itself.
"""

import math
from dataclasses import dataclass, field

from asyncrl.replay.queue import ReplayQueue


@dataclass(slots=True)
class Oversampling:
    """One per run; off when `oversampling` is None."""

    queue: ReplayQueue
    oversampling: float | None
    _seen: tuple[int, ...] = ()
    _is_over: bool = field(default=False)

    def is_over(self) -> bool:
        """Whether the batch after the last one taken is ready, and the rest is to wait."""
        if self.oversampling is None:
            return False
        queue = self.queue
        seen = (queue.num_steps_taken, queue.num_admitted, queue.num_dropped, queue.num_ready)
        if seen != self._seen:
            self._seen, self._is_over = seen, queue.choose(queue.num_steps_taken) is not None
        return self._is_over

    def may_admit(self, num_waiting: int) -> bool:
        """Whether a round has room for a new group while `num_waiting` older ones wait for a server."""
        if self.oversampling is None:
            return True
        limit = math.ceil(self.oversampling * self.queue.settings.groups_per_batch)
        return not num_waiting and len(self.queue.live) < limit and not self.is_over()
