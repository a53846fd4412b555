"""Dynamic sampling (DAPO, Yu et al. 2025, arxiv.org/abs/2503.14476): groups without a signal make room.

A dropped group gives its place back, so more are admitted until the batch is full. Its tokens are counted as
dropped: no_signal. Never holds a run up: after `max_in_a_row` such groups the next one is let through.
"""

from dataclasses import dataclass

from asyncrl.replay.group import Group
from asyncrl.replay.policy import has_signal


@dataclass(slots=True)
class SignalFilter:
    """Judges by raw correctness, never by the shaped reward."""

    is_on: bool
    max_in_a_row: int
    num_in_a_row: int = 0

    def lets_through(self, group: Group) -> bool:
        """Called once per group, when its verdicts are there."""
        if not self.is_on or has_signal(group) or self.num_in_a_row >= self.max_in_a_row:
            self.num_in_a_row = 0
            return True
        self.num_in_a_row += 1
        return False
