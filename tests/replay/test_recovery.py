"""From the journal back to memory."""

import dataclasses
from pathlib import Path

import pytest
from fakes.records import batch_of, finish, generate, make_queue, make_score, make_task, reopen

from asyncrl.errors import InputError
from asyncrl.journal.conservation import read_conservation
from asyncrl.journal.queue_state import load_batch
from asyncrl.journal.reader import JournalReader
from asyncrl.records import DropReason, Finish, Observed, Segment, Task
from asyncrl.replay.group import GroupState
from asyncrl.replay.repetition import Repetition, restored_tasks


def test_an_empty_journal_restores_to_an_empty_queue(tmp_path: Path) -> None:
    queue = make_queue(tmp_path)
    queue.restore(lambda task_id, prompt: make_task())
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


def test_turns_come_back_and_what_was_observed_is_in_no_account(tmp_path: Path) -> None:
    queue = make_queue(tmp_path)
    queue.announce(0)
    group = queue.admit(make_task(5))
    first, second = group.trajectories
    queue.append(group, first, [Segment(0, [4, 5], [-0.25, -0.5])], None)
    first.turn_finish = Finish.STOP
    queue.observe(group, first, Observed([6, 6, 6], "{}"))
    queue.append(group, first, [Segment(0, [7], [-1.0]), Segment(1, [8], [-2.0])], None)
    queue.append(group, second, [Segment(0, [9], [-1.0])], None)
    again = reopen(queue, tmp_path)
    restored = again.live[0]
    assert restored.trajectories == group.trajectories
    turns = restored.trajectories[0]
    assert turns.turns() == [[4, 5], [7, 8]] and turns.turn_tokens() == [7, 8]
    assert turns.response_tokens() == [4, 5, 6, 6, 6, 7, 8] and turns.num_sampled_tokens() == 4
    assert again.conservation()["generated"] == again.conservation()["queued"] == 5


def test_named_scores_come_back_to_the_last_digit(tmp_path: Path) -> None:
    queue = make_queue(tmp_path)
    queue.announce(0)
    group = queue.admit(make_task(5))
    generate(queue, group, version=0)
    first, second = group.trajectories
    scores = {"format": 0.1 + 0.2, "right": 1 / 3}
    queue.score(group, first, dataclasses.replace(make_score(1.0), scores=scores), "")
    queue.score(group, second, make_score(0.0), "")
    restored = reopen(queue, tmp_path).live[0].scores
    assert [restored[t.trajectory_id].scores for t in (first, second)] == [scores, {}]
    rows = JournalReader(tmp_path / "journal.sqlite").group(0)["trajectories"]
    assert [row["scores"] for row in rows] == [scores, {}]


def test_an_observation_needs_a_turn_that_ended(tmp_path: Path) -> None:
    queue = make_queue(tmp_path)
    queue.announce(0)
    group = queue.admit(make_task(5))
    with pytest.raises(AssertionError, match="turn has not ended"):
        queue.observe(group, group.trajectories[0], Observed([6], "{}"))


def test_an_empty_observation_comes_back_in_front_of_the_turn_that_followed_it(tmp_path: Path) -> None:
    queue = make_queue(tmp_path)
    queue.announce(0)
    group = queue.admit(make_task(5))
    for trajectory in group.trajectories:
        for turn in ([4, 5], [7, 8], [9]):
            queue.append(group, trajectory, [Segment(0, turn, [-0.5] * len(turn))], None)
            trajectory.turn_finish = Finish.STOP
            queue.observe(group, trajectory, Observed([], "{}"))
    again = reopen(queue, tmp_path)
    assert [t.turns() for t in again.live[0].trajectories] == [[[4, 5], [7, 8], [9], []]] * 2


def test_a_batch_of_turns_is_read_back_as_it_was_given(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, batch=1)
    queue.announce(0)
    group = queue.admit(make_task(5))
    for trajectory in group.trajectories:
        queue.append(group, trajectory, [Segment(0, [4, 5], [-0.25, -0.5])], None)
        trajectory.turn_finish = Finish.STOP
        queue.observe(group, trajectory, Observed([6, 6], "{}"))
        queue.append(group, trajectory, [Segment(0, [7], [-1.0])], None)
        trajectory.turn_finish = Finish.STOP
        # What follows the last sampled token is no context of anything.
        queue.observe(group, trajectory, Observed([9], "{}"))
        queue.append(group, trajectory, [], Finish.STOP)
    for index, trajectory in enumerate(group.trajectories):
        queue.score(group, trajectory, make_score(float(index)), "text")
    queue.make_ready(group, {t.trajectory_id: 1.0 for t in group.trajectories})
    given = batch_of(queue.take(0) or [], 0, 1.0)
    queue.journal.close()
    (first, _) = given.sequences
    assert first.response_tokens == [4, 5, 6, 6, 7] and first.observed == [(2, 4)]
    assert first.behavior_logprobs == [-0.25, -0.5, -1.0] and first.sampled_tokens() == [4, 5, 7]
    assert load_batch(JournalReader(tmp_path / "journal.sqlite"), 0, 1.0) == given


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
        make_queue(tmp_path).restore(gone)


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
    repetition = queue.repeats
    assert repetition is None or isinstance(repetition, Repetition)
    if repetition is not None:
        repetition.draw(5)
    pool = [] if repetition is None or steps <= 5 else [g.task.task_id for g in repetition.pool.values()]
    queue.journal.close()
    again = make_queue(tmp_path, **sizes, abort_staleness=abort_staleness)
    asked = []

    def find(task_id: str, prompt: str) -> Task:
        asked.append((task_id, prompt))
        return make_task(int(task_id.partition(":")[2]))

    said = restored_tasks(again.journal, again.settings)
    again.restore(find)
    assert asked == said
    assert sorted(task_id for task_id, _ in said) == sorted(live + pool)
