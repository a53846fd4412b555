"""Groups that were trained join later batches: bounded in number, in age and in uses, exactly recorded."""

from pathlib import Path

import pytest
from fakes.records import batch_of, finish, make_queue, make_task, reopen, repetition_of
from journal.test_compaction import commit, versions_with_tokens

from asyncrl.errors import QueueError
from asyncrl.journal.compaction import Compaction, compact
from asyncrl.journal.connection import REPEATED, TRAINED
from asyncrl.journal.explain import explain_group
from asyncrl.journal.queue_state import load_batch
from asyncrl.journal.reader import GroupFilter, JournalReader
from asyncrl.replay.group import Group
from asyncrl.replay.queue import ReplayQueue


def take(queue: ReplayQueue, step: int) -> list[Group]:
    """Announces `step`, generates what is missing of a batch with its version, and takes the batch."""
    queue.announce(step)
    while queue.can_admit():
        queue.admit(make_task(queue.num_admitted))
    for group in list(queue.live.values())[: queue.settings.groups_per_batch]:
        finish(queue, group, version=step)
    batch = queue.take(step)
    assert batch is not None
    return batch


def after(num_steps: int, folder: Path, **sizes: int) -> ReplayQueue:
    """A queue of which these steps have taken their batches."""
    queue = make_queue(folder, **sizes)
    for step in range(num_steps):
        take(queue, step)
    return queue


def ids(groups: list[Group]) -> list[int]:
    return [group.group_id for group in groups]


def test_a_batch_holds_its_new_groups_and_then_repeated_ones(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, batch=2, staleness=1, repeated=1)
    assert ids(take(queue, 0)) == [0, 1]
    assert ids(take(queue, 1)) == [2, 3, 0]
    assert [group.taken_version for group in repetition_of(queue).pool.values()] == [0, 0, 1, 1]


def test_nothing_is_repeated_unless_asked(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, batch=2, staleness=1)
    assert ids(take(queue, 0)) == [0, 1]
    assert ids(take(queue, 1)) == [2, 3]
    assert queue.repeats is None


def test_the_least_often_trained_and_then_the_freshest_are_repeated_first(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, batch=2, staleness=4, repeated=1, max_uses=9)
    # Group 1 is as little trained as group 2 at step 2, and older.
    assert [ids(take(queue, step))[2:] for step in range(4)] == [[], [0], [2], [4]]


def test_no_group_is_trained_more_often_than_max_uses(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, batch=1, staleness=8, repeated=2, max_uses=3, steps=9)
    taken = [group_id for step in range(9) for group_id in ids(take(queue, step))]
    assert max(taken.count(group_id) for group_id in taken) == 3


def test_no_repeated_group_is_staler_than_the_limit(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, batch=1, staleness=1, repeated=3, max_uses=9)
    for step in range(8):
        assert min(group.oldest_version() for group in take(queue, step)) >= step - 1
        assert len(repetition_of(queue).pool) <= 2 * queue.settings.groups_per_batch


def test_a_group_without_a_gradient_is_not_repeated(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, batch=1, staleness=1, repeated=1)
    queue.announce(0)
    group = queue.admit(make_task(0))
    finish(queue, group, version=0)
    group.advantages = dict.fromkeys(group.advantages, 0.0)
    assert ids(queue.take(0) or []) == [0]
    assert ids(take(queue, 1)) == [1]
    assert ids(take(queue, 2)) == [2, 1]


def test_a_group_whose_later_turns_alone_have_a_gradient_is_repeated(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, batch=1, staleness=1, repeated=1)
    queue.announce(0)
    group = queue.admit(make_task(0))
    finish(queue, group, version=0)
    group.advantages = dict.fromkeys(group.advantages, 0.0)
    group.turn_advantages = {next(iter(group.advantages)): [(1, 0.0), (2, 0.5)]}
    queue.take(0)
    assert ids(take(queue, 1)) == [1, 0]


@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_where_every_group_teaches_one_whose_rewards_are_all_equal_is_repeated(
    tmp_path: Path, reward: float
) -> None:
    # Under gae and reinforce_pp the queue holds rewards, which are not yet advantages.
    for always_teaches in (False, True):
        (folder := tmp_path / str(always_teaches)).mkdir()
        queue = make_queue(folder, batch=1, staleness=1, repeated=1)
        repetition_of(queue).always_teaches = always_teaches
        queue.announce(0)
        group = queue.admit(make_task(0))
        finish(queue, group, version=0)
        group.advantages = dict.fromkeys(group.advantages, reward)
        queue.take(0)
        assert ids(take(queue, 1))[1:] == ([0] if always_teaches or reward else [])


def test_a_repeated_batch_is_read_back_as_it_was_given(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, batch=2, staleness=2, repeated=2)
    take(queue, 0)
    given = batch_of(take(queue, 1), 1, 1.0)
    assert len(given.sequences) == 8
    queue.journal.barrier_blocking()
    assert load_batch(queue.journal, 1, 1.0) == given


def test_a_restarted_controller_knows_what_was_used_how_often(tmp_path: Path) -> None:
    settings = {"batch": 1, "staleness": 4, "repeated": 2, "max_uses": 3}
    queue = after(3, tmp_path, **settings)
    used = {group_id: group.num_uses for group_id, group in repetition_of(queue).pool.items()}
    tokens = dict(queue.repeated_tokens)
    again = reopen(queue, tmp_path, **settings)
    # What is used up does not come back; without a restart the next batch drops it from the pool.
    assert used == {0: 3, 1: 2, 2: 1}
    assert {group_id: group.num_uses for group_id, group in repetition_of(again).pool.items()} == {1: 2, 2: 1}
    assert {step: count for step, count in tokens.items() if count} == again.repeated_tokens
    assert ids(take(again, 3)) == [3, 1, 2]


def test_tokens_are_counted_as_trained_once_and_as_repeated_each_time(tmp_path: Path) -> None:
    queue = after(3, tmp_path, batch=1, staleness=4, repeated=1, max_uses=9)
    queue.commit(3, "step-3")
    assert (queue.counters[TRAINED], queue.counters[REPEATED]) == (18, 12)
    table = queue.conservation()
    assert table["generated"] == sum(count for name, count in table.items() if name != "generated")


def test_tokens_stay_in_the_journal_until_no_later_batch_can_hold_them(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, batch=1, staleness=2, repeated=1, max_uses=3)
    compaction = Compaction(queue.journal, keep_steps=1, keep_checkpoints=1, repeat_reach=2)
    for step in range(6):
        take(queue, step)
    commit(queue, compaction, 6)
    # A batch from step 5 on, which is behind the checkpoint and kept, may repeat one of step 3.
    assert versions_with_tokens(queue) == [3, 4, 5]
    assert len(load_batch(queue.journal, 5, 1.0).sequences) == 4


def test_tokens_that_an_earlier_start_repeated_are_kept_as_long(tmp_path: Path) -> None:
    queue = after(6, tmp_path, batch=1, staleness=2, repeated=2, max_uses=3)
    queue.journal.barrier_blocking()
    # The recipe of this start repeats nothing; step 5 was given groups of steps 3 and 4.
    commit(queue, Compaction(queue.journal, keep_steps=1, keep_checkpoints=1), 6)
    assert len(load_batch(queue.journal, 5, 1.0).sequences) == 6


def test_a_batch_is_refused_when_the_tokens_of_a_repeated_group_are_gone(tmp_path: Path) -> None:
    queue = after(6, tmp_path, batch=1, staleness=2, repeated=2, max_uses=3)
    queue.commit(5, "step-5")
    queue.journal.write(*compact(0, 5))
    queue.journal.barrier_blocking()
    with pytest.raises(QueueError, match="no longer holds all tokens of step 6"):
        load_batch(queue.journal, 5, 1.0)


def test_the_journal_says_in_which_steps_a_group_was_trained(tmp_path: Path) -> None:
    queue = after(3, tmp_path, batch=1, staleness=3, repeated=1, max_uses=3)
    queue.commit(3, "step-3")
    queue.journal.barrier_blocking()
    view = JournalReader(tmp_path / "journal.sqlite")
    group = view.group(0)
    assert group is not None and (group["step"], group["repeated_steps"]) == (1, [2])
    assert any("again, in step(s) 2" in line for line in explain_group(view, group))
    assert [row["group_id"] for row in view.groups(GroupFilter(step=2))] == [1, 0]


def test_trajectories_without_an_advantage_stay_out_of_repeated_groups(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, batch=1, samples=3, staleness=1, repeated=1)
    queue.announce(0)
    group = queue.admit(make_task(0))
    finish(queue, group, version=0)
    del group.advantages[group.trajectories[2].trajectory_id]
    queue.take(0)
    assert len(batch_of(take(queue, 1), 1, 1.0).sequences) == 3 + 2
