"""The replay queue: admission, take, commit, conservation."""

import random
from pathlib import Path

import pytest
from fakes.records import finish, generate, make_queue, make_score, make_task

from asyncrl.errors import QueueError, StalenessBreach
from asyncrl.records import DropReason, Finish, Segment
from asyncrl.replay.group import GroupState


def test_nothing_is_admitted_before_the_trainer_announced_its_version(tmp_path: Path) -> None:
    queue = make_queue(tmp_path)
    assert not queue.can_admit()
    with pytest.raises(QueueError):
        queue.admit(make_task())


@pytest.mark.parametrize(
    # (max_staleness 1 + version 0 + 1) * 2 groups per batch = 4; and no more than the run will train.
    "sizes",
    [{"staleness": 1}, {"staleness": 5, "steps": 2}],
)
def test_admission_stops_at_the_staleness_bound_and_at_the_end_of_the_run(
    tmp_path: Path, sizes: dict[str, int]
) -> None:
    queue = make_queue(tmp_path, batch=2, **sizes)
    queue.announce(0)
    for number in range(4):
        queue.admit(make_task(number))
    assert not queue.can_admit()


def test_a_new_version_admits_one_more_batch(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, batch=2, staleness=1)
    queue.announce(0)
    groups = [queue.admit(make_task(number)) for number in range(4)]
    for group in groups:
        finish(queue, group, version=0)
    assert queue.take(0) is not None
    assert not queue.can_admit()
    queue.announce(1)
    assert [queue.admit(make_task(n)).admitted_version for n in range(2)] == [1, 1]
    assert not queue.can_admit()


def test_a_dropped_group_frees_its_place(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, batch=1, staleness=0)
    queue.announce(0)
    group = queue.admit(make_task())
    assert not queue.can_admit()
    queue.drop(group, DropReason.SERVER)
    assert queue.can_admit()


def test_a_token_older_than_its_admission_raises(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, batch=1, staleness=0)
    queue.announce(0)
    finish(queue, queue.admit(make_task()), version=0)
    assert queue.take(0) is not None
    queue.announce(1)
    group = queue.admit(make_task())
    with pytest.raises(StalenessBreach):
        generate(queue, group, version=0)


def test_versions_of_a_trajectory_never_decrease(tmp_path: Path) -> None:
    queue = make_queue(tmp_path)
    queue.announce(0)
    group = queue.admit(make_task())
    queue.append(group, group.trajectories[0], [Segment(3, [1], [-1.0])], None)
    with pytest.raises(StalenessBreach):
        queue.append(group, group.trajectories[0], [Segment(2, [1], [-1.0])], None)


def test_chunks_of_one_version_become_one_segment(tmp_path: Path) -> None:
    queue = make_queue(tmp_path)
    queue.announce(0)
    group = queue.admit(make_task())
    trajectory = group.trajectories[0]
    queue.append(group, trajectory, [Segment(0, [1, 2], [-1.0, -2.0])], None)
    queue.append(group, trajectory, [Segment(0, [3], [-3.0]), Segment(1, [4], [-4.0], True)], Finish.LENGTH)
    assert [(s.version, s.tokens) for s in trajectory.segments] == [(0, [1, 2, 3]), (1, [4])]


def test_a_trainer_ahead_of_the_journal_is_refused(tmp_path: Path) -> None:
    queue = make_queue(tmp_path)
    with pytest.raises(QueueError, match="different runs"):
        queue.announce(1)


def test_a_commit_trains_every_taken_group_below_it_once(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, batch=1, staleness=0)
    for step in range(3):
        queue.announce(step)
        finish(queue, queue.admit(make_task(step)), version=step)
        assert queue.take(step) is not None
    assert queue.commit(2, "checkpoint") == 2
    assert queue.commit(2, "checkpoint") == 0
    queue.journal.barrier_blocking()
    states = queue.journal.read("SELECT state FROM groups ORDER BY group_id")
    assert states == [("trained",), ("trained",), ("taken",)]


def test_a_fault_leaves_its_group_and_is_counted(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, batch=1, samples=3, staleness=0)
    queue.announce(0)
    group = queue.admit(make_task())
    generate(queue, group, version=0, num_tokens=5)
    rewards = [1.0, None, 0.0]
    for trajectory, reward in zip(group.trajectories, rewards, strict=True):
        queue.score(group, trajectory, make_score(reward), "")
    ids = [t.trajectory_id for t in group.trajectories]
    queue.make_ready(group, {ids[0]: 1.0, ids[2]: -1.0})
    assert queue.take(0) == [group]
    table = queue.conservation()
    assert (table["generated"], table["taken"], table["dropped: fault"]) == (15, 10, 5)


@pytest.mark.parametrize("seed", range(25))
def test_under_any_interleaving_the_bound_holds_and_no_token_is_lost(tmp_path: Path, seed: int) -> None:
    """A random schedule of every operation; the queue raises StalenessBreach itself when the bound breaks."""
    chance = random.Random(seed)
    staleness, batch, steps = chance.randrange(4), chance.randrange(1, 4), 12
    queue = make_queue(tmp_path, batch=batch, samples=2, staleness=staleness, steps=steps)
    queue.announce(0)
    server_version, trained, admitted = 0, set(), {}
    while queue.num_steps_taken < steps:
        open_groups = [g for g in queue.live.values() if g.state is GroupState.OPEN]
        action = chance.random()
        if action < 0.4 and queue.can_admit():
            group = queue.admit(make_task())
            admitted[group.group_id] = group
        elif action < 0.75 and open_groups:
            finish(
                queue, chance.choice(open_groups), version=server_version, num_tokens=chance.randrange(1, 9)
            )
        elif action < 0.78 and open_groups:
            queue.drop(chance.choice(open_groups), DropReason.SERVER)
        elif action < 0.8:
            queue.discard(chance.randrange(5), DropReason.UNCONFIRMED)
        elif queue.version == queue.num_steps_taken and (taken := queue.take(queue.num_steps_taken)):
            step = queue.num_steps_taken - 1
            assert all(step - group.oldest_version() <= staleness for group in taken)
            assert trained.isdisjoint(group.group_id for group in taken)
            trained.update(group.group_id for group in taken)
        elif queue.version < queue.num_steps_taken:
            server_version = queue.num_steps_taken
            queue.announce(server_version)
            if chance.random() < 0.3:
                queue.commit(queue.num_steps_taken, "checkpoint")
        table = queue.conservation()
        assert table.pop("generated") == sum(table.values())
    assert len(trained) == steps * batch
