"""Branches and calls of an agent in queue and journal: what is kept, what is dropped, and the books."""

from pathlib import Path

from fakes.records import make_queue, make_task, reopen

from asyncrl.journal.conservation import read_conservation
from asyncrl.journal.explain import explain_group, explain_trajectory
from asyncrl.journal.reader import GroupFilter, JournalReader
from asyncrl.model.column_bytes import KEPT_SETS, ROUTES
from asyncrl.records import DropReason, Finish, Observed, RecordedCall, Segment, Trajectory
from asyncrl.replay.branches import keep_calls, open_line, record_call
from asyncrl.replay.group import Group
from asyncrl.replay.queue import ReplayQueue

DROPPED = f"dropped: {DropReason.ABANDONED}"


def call(
    queue: ReplayQueue, group: Group, line: Trajectory, number: int, ordinal: int, turn: int
) -> RecordedCall:
    """A call with a turn of three tokens."""
    (trajectory,) = group.trajectories
    recorded = RecordedCall(ordinal, 0, f"digest {ordinal}", number, turn)
    observation = Observed([50, 51]) if turn else None
    record_call(queue, group, trajectory, recorded, observation)
    num_before = len(line.prompt_tokens) + line.num_response_tokens() - 1 - line.num_computed()
    segment = Segment(
        *(0, [1, 2, 3], [-0.5] * 3),
        columns={KEPT_SETS: bytearray(b"\x05\0\0\x81\x01\0"), ROUTES: bytearray([number, turn, 9])},
        context={ROUTES: bytes(num_before)} if num_before else {},
    )
    queue.append(group, line, [segment], None)
    line.turn_finish = Finish.STOP
    return recorded


def played(folder: Path) -> tuple[ReplayQueue, Group, list[RecordedCall]]:
    """Two turns of a trajectory, then two of a branch."""
    queue = make_queue(folder, samples=1)
    queue.announce(0)
    group = queue.admit(make_task())
    (trajectory,) = group.trajectories
    assert open_line(queue, group, trajectory, [4, 5]) is trajectory
    calls = [call(queue, group, trajectory, 0, 0, 0), call(queue, group, trajectory, 0, 1, 1)]
    branch = open_line(queue, group, trajectory, [6])
    return queue, group, [*calls, call(queue, group, branch, 1, 2, 0), call(queue, group, branch, 1, 3, 1)]


def check(queue: ReplayQueue, folder: Path, group: Group) -> None:
    """Memory and journal hold the same."""
    fates = queue.conservation()
    assert fates["generated"] == sum(fates.values()) - fates["generated"] == 12
    queue.journal.barrier_blocking()
    assert read_conservation(queue.journal.path) == fates
    segments, kept_sets, routes = (
        queue.journal.read(f"SELECT trajectory_id, position FROM {table} ORDER BY 1, 2")
        for table in ("segments", "kept_sets", "routes")
    )
    assert segments == kept_sets == routes
    (mine,) = group.trajectories
    (again,) = reopen(queue, folder, samples=1).live[0].trajectories
    assert again.calls == mine.calls and again.prompt_tokens == mine.prompt_tokens
    kept = [(line.trajectory_id, line.prompt_tokens, line.segments) for line in mine.lines()]
    assert kept == [(line.trajectory_id, line.prompt_tokens, line.segments) for line in again.lines()]


def test_a_restart_finds_branches_and_calls(tmp_path: Path) -> None:
    queue, group, calls = played(tmp_path)
    assert [line.trajectory_id for line in group.trajectories[0].lines()] == ["00000000-00", "00000000-00.1"]
    assert group.trajectories[0].calls == calls and group.num_tokens() == 12
    check(queue, tmp_path, group)


def test_all_calls_kept_drop_nothing(tmp_path: Path) -> None:
    queue, group, calls = played(tmp_path)
    assert keep_calls(queue, group, group.trajectories[0], calls) == 0
    check(queue, tmp_path, group)


def test_a_turn_that_is_not_kept_goes_with_those_behind_it_and_a_branch_without_turns_too(
    tmp_path: Path,
) -> None:
    queue, group, calls = played(tmp_path)
    (trajectory,) = group.trajectories
    assert keep_calls(queue, group, trajectory, calls[:1]) == 9
    assert not trajectory.branches and trajectory.response_tokens() == [1, 2, 3]
    assert queue.conservation()[DROPPED] == 9
    check(queue, tmp_path, group)


def test_a_trajectory_may_lose_its_turns_and_keep_a_branch(tmp_path: Path) -> None:
    queue, group, calls = played(tmp_path)
    (trajectory,) = group.trajectories
    assert keep_calls(queue, group, trajectory, calls[2:3]) == 9
    assert not trajectory.segments and trajectory.answer_tokens() == [1, 2, 3]
    assert open_line(queue, group, trajectory, [9]).trajectory_id == "00000000-00.2"
    keep_calls(queue, group, trajectory, calls[2:3])
    check(queue, tmp_path, group)


def test_a_branch_is_told_as_one(tmp_path: Path) -> None:
    queue, _, _ = played(tmp_path)
    queue.journal.barrier_blocking()
    reader = JournalReader(queue.journal.path)
    group = reader.group(0)
    assert group is not None
    assert "branch of 00000000-00, no advantage" in explain_group(reader, group)[-1]
    told = explain_trajectory(reader, group, group["trajectories"][1])
    assert "It is a branch of 00000000-00, whose verdict and advantage are its own." in told
    (summary,) = reader.groups(GroupFilter())
    assert summary["num_trajectories"] == 1 and summary["tokens"] == 12
