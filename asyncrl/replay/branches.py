"""The seam between what makes trajectories and what keeps them (the replay queue in a run, memory alone in
evaluations and chats), and the changes of trajectories that have branches: rendered histories, an agent's
calls, the branches that these open, and what an agent leaves.

A call is journaled with the turn that it opens, in one transaction and before anything is sampled for it: an
agent that is started again finds each of its calls with its turn. Like the queue's own changes, these wait
for nothing.
"""

from collections.abc import Callable, Mapping, Sequence

from asyncrl.journal import statements
from asyncrl.journal.connection import DROPPED, Statement, bump
from asyncrl.records import (
    DropReason,
    Finish,
    Observed,
    RecordedCall,
    Score,
    Segment,
    Trajectory,
    branch_id,
    branch_number,
)
from asyncrl.replay.group import Group, GroupState
from asyncrl.replay.queue import ReplayQueue


class Unrecorded:
    """Trajectories in memory alone; members as those of `ReplayQueue`. Tokens of any version may follow each
    other."""

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


TrajectoryRecord = ReplayQueue | Unrecorded
"""Keeps what happens to trajectories."""


def open_line(
    queue: TrajectoryRecord, group: Group, trajectory: Trajectory, context: Sequence[int], *, role: str = ""
) -> Trajectory:
    """A conversation of `role` that begins with `context`: the trajectory itself as long as it has neither
    tokens nor calls, else a new branch."""
    _check(group, trajectory)
    if not trajectory.calls and not trajectory.segments and not trajectory.branches:
        trajectory.prompt_tokens, trajectory.role = tuple(context), role
        queue.journal.write(statements.opened(trajectory))
        return trajectory
    number = max((branch_number(line.trajectory_id) for line in trajectory.lines()), default=0) + 1
    # Abandoned ones may have had higher numbers, and tokens of them may be on their way.
    number = max([number, *(call.branch + 1 for call in trajectory.calls)])
    branch = Trajectory(
        branch_id(trajectory.trajectory_id, number),
        tuple(context),
        is_greedy=trajectory.is_greedy,
        role=role,
    )
    trajectory.branches.append(branch)
    queue.journal.write(statements.branched(trajectory, branch))
    return branch


def branch_off(
    queue: TrajectoryRecord,
    group: Group,
    trajectory: Trajectory,
    observation: Observed,
    context: Sequence[int],
) -> Trajectory:
    """The newest line's turn was answered, and the next turn has a `context` of its own: a new branch. In one
    transaction, so that a restart continues none without the other."""
    _check(group, trajectory)
    line = trajectory.newest_line()
    assert line.turn_finish is not None, f"{line.trajectory_id}: its turn has not ended"
    name = branch_id(trajectory.trajectory_id, len(trajectory.branches) + 1)
    branch = Trajectory(name, tuple(context), is_greedy=trajectory.is_greedy)
    queue.journal.write(statements.observed(line, observation), statements.branched(trajectory, branch))
    line.observe(observation)
    trajectory.branches.append(branch)
    return branch


def record_call(
    queue: TrajectoryRecord,
    group: Group,
    trajectory: Trajectory,
    call: RecordedCall,
    observation: Observed | None = None,
) -> None:
    """The call and, where it continues a conversation, what it says after the turn before."""
    _check(group, trajectory)
    line = trajectory.branch(call.branch)
    rows = [statements.called(trajectory.trajectory_id, call)]
    if observation is not None:
        rows.append(statements.observed(line, observation))
        line.observe(observation)
    trajectory.calls.append(call)
    queue.journal.write(*rows)


def keep_calls(
    queue: TrajectoryRecord, group: Group, trajectory: Trajectory, kept: Sequence[RecordedCall]
) -> int:
    """Drops what was sampled for calls that are not among `kept`, with the turns that build on it; the number
    of tokens that this are."""
    _check(group, trajectory)
    rows: list[Statement] = []
    num_dropped = 0
    for line in trajectory.lines():
        number = branch_number(line.trajectory_id)
        last = max((call.turn for call in kept if call.branch == number), default=-1)
        parts = _parts_through(line, last)
        if len(parts) == len(line.segments) and (parts or number == 0):
            continue
        before = line.num_sampled_tokens()
        line.segments = parts
        num_dropped += before - line.num_sampled_tokens()
        rows += statements.cut_off(line, line.num_response_tokens())
    known = set(kept)
    rows += [
        statements.uncalled(trajectory.trajectory_id, call) for call in trajectory.calls if call not in known
    ]
    trajectory.branches = [branch for branch in trajectory.branches if branch.segments]
    trajectory.calls = [call for call in trajectory.calls if call in known]
    if rows:
        queue.journal.write(*rows, queue.count(DROPPED + DropReason.ABANDONED, num_dropped))
    return num_dropped


def _check(group: Group, trajectory: Trajectory) -> None:
    assert group.state is GroupState.OPEN and trajectory.finish is None, trajectory.trajectory_id


def _parts_through(line: Trajectory, turn: int) -> list[Segment | Observed]:
    """All up to the end of a turn; nothing for -1."""
    kept: list[Segment | Observed] = []
    for segment in line.segments if turn >= 0 else ():
        if isinstance(segment, Observed):
            if turn == 0:
                break
            turn -= 1
        kept.append(segment)
    return kept
