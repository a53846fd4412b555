"""A batch that is read back is the one that was given."""

import dataclasses
from pathlib import Path

import pytest
from fakes.records import batch_of, generate, make_queue, make_score, make_task

from asyncrl.journal.queue_state import load_batch
from asyncrl.model.column_bytes import KEPT_SETS, ROUTES
from asyncrl.records import Finish, Segment


def test_a_repeated_take_is_the_same_batch_to_the_last_digit(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, batch=2)
    queue.announce(0)
    for number in range(2):
        group = queue.admit(make_task(number))
        first, second = group.trajectories
        queue.append(
            group,
            first,
            [
                Segment(
                    *(0, [1, 2], [-0.1, -0.2]),
                    columns={KEPT_SETS: bytearray(b"\x05\0\0"), ROUTES: bytearray(b"cd")},
                    context={ROUTES: b"ab"},
                ),
                Segment(
                    *(1, [3], [-0.3], True),
                    columns={KEPT_SETS: bytearray(b"\x81\x01\0"), ROUTES: bytearray(b"e")},
                ),
            ],
            Finish.STOP,
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
    told = [(s.finish, s.outcome, s.source) for s in from_journal.sequences[:2]]
    assert told == [("stop", "correct", "train"), ("length", "wrong", "train")]
    told = {KEPT_SETS: b"\x05\0\0\x81\x01\0", ROUTES: b"abcde"}
    assert [s.columns for s in from_journal.sequences[:2]] == [told, {}]


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
