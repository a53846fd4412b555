"""Adaptive groups: which pilots get the rest of their group.

A group is extended once all of its pilot is graded. It is where the pilot has an advantage other than 0 or
is mixed, where none of it has a verdict, where scores lie between right and wrong, and where the chance that
the whole group becomes mixed is `min_chance` at least, by the pilot and the record of the row (`PassRates`).
Else the pilot is the group: its rewards are equal, its advantages 0, and replay.drops_no_signal decides as of
any group without a signal.

That changes the weight of a row, not the direction of its gradient (docs/algorithms.md has the formula). The
decision is in the journal as the trajectories of the group: one that a crash comes before is made again.
"""

from collections.abc import Callable
from dataclasses import dataclass

from asyncrl.records import PolicyVersion, Task
from asyncrl.replay.group import Group
from asyncrl.tasks.pass_rates import PassRates


@dataclass(frozen=True, slots=True)
class AdaptiveGroups:
    num_samples: int
    """Trajectories of a whole group."""
    min_chance: float
    rates: PassRates
    row_of: Callable[[Task], int | None]
    version: Callable[[], PolicyVersion]
    """The trainer's."""
    decided: Callable[[Group, bool], None] = lambda group, is_extended: None
    """Told of each decision about a pilot."""

    def extends(self, group: Group, teaches: bool) -> bool:
        """Whether `group`, all of which is graded, gets the rest of its trajectories. `teaches`: one of its
        advantages is not 0."""
        num_more = self.num_samples - len(group.trajectories)
        if num_more <= 0:
            return False
        is_extended = teaches or self._is_worth(group, num_more)
        self.decided(group, is_extended)
        return is_extended

    def _is_worth(self, group: Group, num_more: int) -> bool:
        scores = [s.correctness for s in group.scores.values() if s.correctness is not None]
        if set(scores) not in ({0.0}, {1.0}):
            return True
        num_right = sum(scores)
        chance = self.rates.mixed_chance(
            self.row_of(group.task),
            self.version(),
            num_right=num_right,
            num_wrong=len(scores) - num_right,
            num_more=num_more,
        )
        return chance >= self.min_chance
