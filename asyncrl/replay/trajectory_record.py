"""The seam between what makes trajectories and what keeps them: the replay queue in a run, memory alone in
evaluations and chats."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from asyncrl.journal.counters import Statement, bump
from asyncrl.records import DropReason, Finish, Observed, Score, Segment, Trajectory
from asyncrl.replay.group import Group, GroupState


class Statements(Protocol):
    """The `Journal`, as far as changes of trajectories are handed to it."""

    def write(self, *statements: Statement) -> None: ...


class TrajectoryRecord(Protocol):
    """Each member as the `ReplayQueue` has it."""

    @property
    def journal(self) -> Statements: ...

    @property
    def num_dropped(self) -> int: ...

    def is_catching_up(self) -> bool: ...

    def stream_from(self, server: str, trajectories: Sequence[Trajectory]) -> None: ...

    def append(
        self, group: Group, trajectory: Trajectory, segments: Sequence[Segment], finish: Finish | None
    ) -> None: ...

    def observe(self, group: Group, trajectory: Trajectory, observation: Observed) -> None: ...

    def end(
        self,
        group: Group,
        trajectory: Trajectory,
        finish: Finish,
        score: Score | None,
        text: str,
        branch_texts: Mapping[str, str] | None = None,
    ) -> None: ...

    def discard(self, num_tokens: int, reason: DropReason) -> None: ...

    def drop(self, group: Group, reason: DropReason) -> None: ...

    def count(self, counter: str, amount: int) -> Statement: ...


class Unrecorded:
    """A `TrajectoryRecord` in memory alone. Tokens of any version may follow each other."""

    def __init__(self, streamed: Callable[[int], None] = lambda num_tokens: None) -> None:
        """`streamed` is called with the number of tokens that have come."""
        self._streamed = streamed
        self.num_dropped = 0

    @property
    def journal(self) -> "Unrecorded":
        return self

    def write(self, *statements: Statement) -> None:
        pass

    def count(self, counter: str, amount: int) -> Statement:
        return bump(counter, amount)

    def is_catching_up(self) -> bool:
        return False

    def stream_from(self, server: str, trajectories: Sequence[Trajectory]) -> None:
        pass

    def append(
        self, group: Group, trajectory: Trajectory, segments: Sequence[Segment], finish: Finish | None
    ) -> None:
        for segment in segments:
            self._streamed(len(segment.tokens))
            trajectory.extend(segment)
        trajectory.finish = finish

    def observe(self, group: Group, trajectory: Trajectory, observation: Observed) -> None:
        trajectory.observe(observation)

    def end(
        self,
        group: Group,
        trajectory: Trajectory,
        finish: Finish,
        score: Score | None,
        text: str,
        branch_texts: Mapping[str, str] | None = None,
    ) -> None:
        trajectory.finish = finish
        if score is not None:
            group.scores[trajectory.trajectory_id] = score

    def discard(self, num_tokens: int, reason: DropReason) -> None:
        self._streamed(num_tokens)

    def drop(self, group: Group, reason: DropReason) -> None:
        group.state, group.reason = GroupState.DROPPED, reason
        self.num_dropped += 1
