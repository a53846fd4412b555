"""From the journal back to memory."""

import dataclasses
from pathlib import Path

import pytest
from fakes.records import finish, generate, make_queue, make_score, make_task, reopen

from asyncrl.errors import InputError
from asyncrl.journal.batches import load_batch
from asyncrl.journal.conservation import read_conservation
from asyncrl.records import DropReason, Finish, Segment, Task
from asyncrl.replay.group import GroupState, batch_of
from asyncrl.replay.recovery import restore


def test_an_empty_journal_restores_to_an_empty_queue(tmp_path: Path) -> None:
    queue = make_queue(tmp_path)
    restore(queue, lambda task_id, prompt: make_task())
    assert (queue.num_admitted, queue.num_steps_taken, queue.highest_version, queue.live) == (0, 0, 0, {})


def test_a_partial_trajectory_comes_back_with_every_token_version_and_logprob(tmp_path: Path) -> None:
    queue = make_queue(tmp_path)
    queue.announce(0)
    group = queue.admit(make_task(5))
    first = group.trajectories[0]
    queue.append(group, first, [Segment(0, [4, 5], [-0.25, -0.5])], None)
    queue.append(group, first, [Segment(0, [6], [-1.0]), Segment(1, [7], [-2.0], True)], None)
    again = reopen(queue, tmp_path)
    restored = again.live[0]
    assert restored.state is GroupState.OPEN
    assert restored.task == make_task(5)
    assert restored.trajectories == group.trajectories


def test_a_ready_group_comes_back_with_scores_and_advantages(tmp_path: Path) -> None:
    queue = make_queue(tmp_path)
    queue.announce(0)
    group = queue.admit(make_task(5))
    finish(queue, group, version=0)
    again = reopen(queue, tmp_path)
    assert again.live[0] == group


def test_counts_and_conservation_come_back(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, batch=1)
    queue.announce(0)
    groups = [queue.admit(make_task(number)) for number in range(2)]
    finish(queue, groups[0], version=0)
    queue.take(0)
    queue.drop(groups[1], DropReason.SERVER)
    queue.announce(1)
    generate(queue, queue.admit(make_task(3)), version=1)
    queue.discard(4, DropReason.UNCONFIRMED)
    again = reopen(queue, tmp_path)
    assert again.conservation() == queue.conservation()
    again.journal.close()
    assert read_conservation(tmp_path / "journal.sqlite") == queue.conservation()
    assert (again.num_admitted, again.num_dropped, again.num_steps_taken) == (3, 1, 1)


def test_nothing_is_generated_until_the_trainer_has_caught_up_with_the_journal(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, batch=1, staleness=2)
    queue.announce(0)
    finish(queue, queue.admit(make_task(0)), version=0)
    queue.take(0)
    queue.announce(1)
    finish(queue, queue.admit(make_task(1)), version=1)
    queue.take(1)
    again = reopen(queue, tmp_path)
    # The trainer's checkpoint is of version 0: it repeats steps 0 and 1 from the journal.
    for version in (0, 1):
        again.announce(version)
        assert again.is_catching_up() and not again.can_admit()
    again.announce(2)
    assert not again.is_catching_up() and again.can_admit()


def test_a_repeated_take_is_the_same_batch_to_the_last_digit(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, batch=2)
    queue.announce(0)
    for number in range(2):
        group = queue.admit(make_task(number))
        first, second = group.trajectories
        queue.append(
            group, first, [Segment(0, [1, 2], [-0.1, -0.2]), Segment(1, [3], [-0.3], True)], Finish.STOP
        )
        queue.append(group, second, [Segment(0, [9], [-1 / 3])], Finish.LENGTH)
        for trajectory, reward in ((first, 1.0), (second, 0.0)):
            queue.score(group, trajectory, make_score(reward), "")
        queue.make_ready(group, {first.trajectory_id: 0.7, second.trajectory_id: -0.7})
    taken = queue.take(0)
    assert taken is not None
    queue.journal.barrier_blocking()
    from_memory, from_journal = batch_of(taken, 0, 1.0), load_batch(queue.journal, 0, 1.0)
    assert [s.behavior_logprobs for s in from_journal.sequences] == [
        pytest.approx(s.behavior_logprobs, rel=1e-7) for s in from_memory.sequences
    ]
    for a, b in zip(from_memory.sequences, from_journal.sequences, strict=True):
        assert dataclasses.replace(a, behavior_logprobs=[]) == dataclasses.replace(b, behavior_logprobs=[])
    assert from_journal.sequences[0].are_continued == [False, False, True]


def test_a_fault_is_not_in_the_repeated_batch(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, batch=1, samples=3)
    queue.announce(0)
    group = queue.admit(make_task(0))
    generate(queue, group, version=0)
    for trajectory, reward in zip(group.trajectories, (1.0, None, 0.0), strict=True):
        queue.score(group, trajectory, make_score(reward), "")
    names = [t.trajectory_id for t in group.trajectories]
    queue.make_ready(group, {names[0]: 1.0, names[2]: -1.0})
    taken = queue.take(0)
    assert taken is not None
    queue.journal.barrier_blocking()
    expected = [names[0], names[2]]
    assert [s.sequence_id for s in batch_of(taken, 0, 1.0).sequences] == expected
    assert [s.sequence_id for s in load_batch(queue.journal, 0, 1.0).sequences] == expected


def test_a_task_that_left_the_data_is_an_error_that_says_so(tmp_path: Path) -> None:
    queue = make_queue(tmp_path)
    queue.announce(0)
    queue.admit(make_task(5))
    queue.journal.close()

    def gone(task_id: str, prompt: str) -> Task:
        raise InputError(f"no {task_id}")

    with pytest.raises(InputError, match="train:5"):
        restore(make_queue(tmp_path), gone)
