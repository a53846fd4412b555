"""The replay queue without its journal and its tokens: the same admission, batches and drops, only faster.

`ReplayQueue` owns the rules; the limit of admission and the choice of a batch are its very functions. A test
drives both with one schedule and compares every answer. What differs is that this queue counts groups by
version, so that it knows without a search whether there is a batch.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from asyncrl.replay.group import GroupState
from asyncrl.replay.policy import choose_liked, choose_oldest
from asyncrl.replay.settings import QueueSettings


@dataclass(slots=True, eq=False)
class PlannedGroup:
    group_id: int
    admitted_version: int
    num_open: int
    """Trajectories that have not ended."""
    state: GroupState = GroupState.OPEN
    has_signal: bool = True
    tokens: dict[int, float] = field(default_factory=dict)
    """Version -> response tokens that it made."""
    server: int | None = None
    """Where its requests run, or ran last."""
    oldest: int | None = None
    """The oldest version that made one of its tokens; None before the first."""

    def num_tokens(self) -> float:
        return sum(self.tokens.values())

    def mean_version(self) -> float:
        total = self.num_tokens()
        return sum(v * n for v, n in self.tokens.items()) / total if total else self.admitted_version


class PlannedQueue:
    """`announce` opens it, as the trainer's first take does."""

    def __init__(self, settings: QueueSettings, *, oversampling: float | None = None) -> None:
        self.settings = settings
        self.version: int | None = None
        self.num_admitted = 0
        self.num_dropped = 0
        self.num_steps_taken = 0
        self.live: dict[int, PlannedGroup] = {}
        self.most_admitted = 0
        """Most groups admitted at the announced version, dropped ones apart."""
        self._limit = None if oversampling is None else math.ceil(oversampling * settings.groups_per_batch)
        self._untaken: Counter[int] = Counter()
        """Admitting version -> live groups."""
        self._ready: Counter[int] = Counter()
        self.num_ready = 0

    def announce(self, version: int) -> None:
        self.version = version
        self.most_admitted = self.settings.most_admitted(version)

    def can_admit(self, *, num_waiting: int = 0) -> bool:
        """Whether the staleness bound, the run's length and, with oversampling, the round allow a group."""
        if self.num_admitted - self.num_dropped >= self.most_admitted:
            return False
        if self._limit is None:
            return True
        return not num_waiting and len(self.live) < self._limit and not self.is_over()

    def is_over(self) -> bool:
        """Whether a round of oversampling has its batch: nothing streams until it is taken."""
        return self._limit is not None and self.has_batch()

    def admit(self) -> PlannedGroup:
        assert self.version is not None
        count = self.settings.samples_per_group + self.settings.has_greedy
        group = PlannedGroup(self.num_admitted, self.version, count)
        self.num_admitted += 1
        self.live[group.group_id] = group
        self._untaken[self.version] += 1
        return group

    def make_ready(self, group: PlannedGroup) -> None:
        group.state = GroupState.READY
        self._ready[group.admitted_version] += 1
        self.num_ready += 1

    def drop(self, group: PlannedGroup) -> None:
        self._remove(group)
        group.state = GroupState.DROPPED
        self.num_dropped += 1

    def has_batch(self) -> bool:
        """Whether `take` at the next version has an answer: the counts that `choose_liked` asks for."""
        version, size = self.num_steps_taken, self.settings.groups_per_batch
        if self.num_ready < size:
            return False
        if self.settings.order == "strict_admission":
            return choose_oldest(list(self.live.values()), batch_size=size) is not None
        num_untaken = num_ready = 0
        for admitted in sorted(self._untaken):
            num_untaken += self._untaken[admitted]
            num_ready += self._ready[admitted]
            if num_ready < num_untaken - (admitted + self.settings.max_staleness - version) * size:
                return False
        return True

    def take(self) -> tuple[list[PlannedGroup] | None, list[PlannedGroup]]:
        """(the batch of the next version, or None; groups that became too old and are dropped)."""
        version, dropped = self.num_steps_taken, list[PlannedGroup]()
        while (batch := self._choose(version)) is not None:
            stale = self._drop_stale(batch, version)
            dropped += stale
            if not stale:
                break
        if batch is None:
            return None, dropped
        for group in batch:
            self._remove(group)
            group.state = GroupState.TAKEN
        self.num_steps_taken += 1
        return batch, dropped + self._drop_stale(list(self.live.values()), version + 1)

    def _choose(self, version: int) -> list[PlannedGroup] | None:
        live, size = list(self.live.values()), self.settings.groups_per_batch
        if self.settings.order == "strict_admission":
            return choose_oldest(live, batch_size=size)
        liked = [group for group in live if group.state is GroupState.READY]
        if self.settings.order == "freshness":
            liked.sort(key=lambda group: (-group.mean_version(), group.group_id))
        elif self.settings.order == "signal":
            liked.sort(key=lambda group: (not group.has_signal, group.group_id))
        return choose_liked(live, liked, version, batch_size=size, max_staleness=self.settings.max_staleness)

    def _drop_stale(self, groups: Sequence[PlannedGroup], version: int) -> list[PlannedGroup]:
        if self.settings.abort_staleness is None:
            return []
        oldest = version - self.settings.abort_staleness
        stale = [group for group in groups if group.oldest is not None and group.oldest < oldest]
        for group in stale:
            self.drop(group)
        return stale

    def _remove(self, group: PlannedGroup) -> None:
        version = group.admitted_version
        del self.live[group.group_id]
        self._untaken[version] -= 1
        if group.state is GroupState.READY:
            self._ready[version] -= 1
            self.num_ready -= 1
        if not self._untaken[version]:
            del self._untaken[version], self._ready[version]
