"""The seam between what makes trajectories and what keeps them: the replay queue in a run, memory alone in an
evaluation."""

from collections.abc import Sequence
from typing import Protocol

from asyncrl.journal.counters import Statement
from asyncrl.records import DropReason, Finish, Score, Segment, Trajectory
from asyncrl.replay.group import Group


class Statements(Protocol):
    """The `Journal`, as far as changes of trajectories are handed to it."""

    def write(self, *statements: Statement) -> None: ...


class TrajectoryRecord(Protocol):
    """Each method as the `ReplayQueue` has it."""

    @property
    def journal(self) -> Statements: ...

    def is_catching_up(self) -> bool: ...

    def stream_from(self, server: str, trajectories: Sequence[Trajectory]) -> None: ...

    def append(
        self, group: Group, trajectory: Trajectory, segments: Sequence[Segment], finish: Finish | None
    ) -> None: ...

    def end(
        self, group: Group, trajectory: Trajectory, finish: Finish, score: Score | None, text: str
    ) -> None: ...

    def discard(self, num_tokens: int, reason: DropReason) -> None: ...

    def drop(self, group: Group, reason: DropReason) -> None: ...

    def count(self, counter: str, amount: int) -> Statement: ...
