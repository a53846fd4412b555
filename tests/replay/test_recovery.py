"""From the journal back to memory."""

from pathlib import Path

import pytest
from fakes.records import finish, generate, make_queue, make_task, reopen

from asyncrl.errors import InputError
from asyncrl.journal.conservation import read_conservation
from asyncrl.records import DropReason, Segment, Task
from asyncrl.replay.group import GroupState
from asyncrl.replay.recovery import restore, restored_tasks


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


def test_a_task_that_left_the_data_is_an_error_that_says_so(tmp_path: Path) -> None:
    queue = make_queue(tmp_path)
    queue.announce(0)
    queue.admit(make_task(5))
    queue.journal.close()

    def gone(task_id: str, prompt: str) -> Task:
        raise InputError(f"no {task_id}")

    with pytest.raises(InputError, match="train:5"):
        restore(make_queue(tmp_path), gone)


@pytest.mark.parametrize("repeated", [0, 1, 2])
@pytest.mark.parametrize("abort_staleness", [None, 0, 1])
@pytest.mark.parametrize(("max_uses", "steps"), [(2, 10), (3, 10), (3, 5)])
def test_what_is_said_to_come_back_is_what_the_data_is_asked_for(
    tmp_path: Path, repeated: int, abort_staleness: int | None, max_uses: int, steps: int
) -> None:
    sizes = {"batch": 1, "staleness": 3, "steps": steps, "repeated": repeated, "max_uses": max_uses}
    queue = make_queue(tmp_path, **sizes, abort_staleness=abort_staleness)
    for step in range(5):
        queue.announce(step)
        if queue.can_admit():
            queue.admit(make_task(queue.num_admitted))
        finish(queue, next(iter(queue.live.values())), version=step)
        assert queue.take(step) is not None
    if queue.can_admit():
        queue.admit(make_task(queue.num_admitted))
    live = [group.task.task_id for group in queue.live.values()]
    # Drops what the next batch may not hold. There is none where the run has all its batches.
    queue.repetition.draw(5)
    pool = [group.task.task_id for group in queue.repetition.pool.values()] if steps > 5 else []
    queue.journal.close()
    again = make_queue(tmp_path, **sizes, abort_staleness=abort_staleness)
    asked = []

    def find(task_id: str, prompt: str) -> Task:
        asked.append((task_id, prompt))
        return make_task(int(task_id.partition(":")[2]))

    said = restored_tasks(again.journal, again.settings)
    restore(again, find)
    assert asked == said
    assert sorted(task_id for task_id, _ in said) == sorted(live + pool)
