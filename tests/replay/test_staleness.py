"""What became too old in flight or in the queue: dropped before the take, and others admitted."""

from pathlib import Path

import pytest
from fakes.records import finish, generate, make_queue, make_task

from asyncrl.errors import InputError
from asyncrl.observe.metrics.batch_columns import staleness_metrics
from asyncrl.recipe.file import parse_recipe
from asyncrl.records import DropReason, Segment
from asyncrl.replay.group import GroupState


def test_groups_that_would_be_too_stale_at_the_next_step_are_dropped_and_make_room(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, batch=1, staleness=2, abort_staleness=0)
    queue.announce(0)
    taken, ready, streaming = (queue.admit(make_task()) for _ in range(3))
    assert not queue.can_admit()
    finish(queue, taken, version=0)
    finish(queue, ready, version=0)
    generate(queue, streaming, version=0)
    assert queue.take(0) == [taken]
    # At step 1 a token of version 0 has staleness 1.
    assert [group.reason for group in (ready, streaming)] == [DropReason.STALE, DropReason.STALE]
    queue.announce(1)
    assert queue.can_admit() and not queue.live
    table = queue.conservation()
    # 3 tokens x 2 trajectories in each group.
    assert (table["generated"], table["taken"], table["dropped: stale"]) == (18, 6, 12)


def test_a_group_without_a_token_is_not_stale(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, batch=1, staleness=1, abort_staleness=0)
    queue.announce(0)
    first, waiting = queue.admit(make_task()), queue.admit(make_task())
    finish(queue, first, version=0)
    queue.take(0)
    queue.announce(1)
    assert waiting.state is GroupState.OPEN
    finish(queue, waiting, version=1)
    assert queue.take(1) == [waiting]


def test_old_tokens_that_were_confirmed_late_are_found_at_the_take(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, batch=1, staleness=1, abort_staleness=0)
    queue.announce(0)
    first, late = queue.admit(make_task()), queue.admit(make_task())
    finish(queue, first, version=0)
    queue.take(0)
    # Streamed under version 0, confirmed after the sweep.
    queue.append(late, late.trajectories[0], [Segment(0, [5], [-0.5])], None)
    queue.announce(1)
    finish(queue, late, version=1)
    fresh = queue.admit(make_task()) if queue.can_admit() else None
    assert fresh is not None
    assert queue.take(1) is None and late.reason is DropReason.STALE
    finish(queue, fresh, version=1)
    assert queue.take(1) == [fresh]


def test_the_three_stalenesses_are_those_of_a_queue_one_can_check_by_hand(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, batch=1, staleness=2)
    queue.announce(0)
    groups = [queue.admit(make_task()) for _ in range(3)]
    finish(queue, groups[0], version=0)
    generate(queue, groups[1], version=0)
    taken = queue.take(0)
    assert taken is not None
    assert staleness_metrics(taken, queue) == {
        # In turn, the third group is trained at step 2; it was admitted at version 0.
        "staleness_at_admission": 2,
        # The second group has tokens of version 0 and step 1 is next.
        "staleness_in_flight": 1,
        "staleness_at_take": 0,
    }


def test_a_limit_that_nothing_can_reach_is_refused() -> None:
    raw = {"name": "n", "model": {"path": "m"}, "data": {"train": "d"}, "evaluation": {"every_steps": 0}}
    for key in ("abort_staleness", "mask_staleness"):
        with pytest.raises(InputError, match=f"rollout.{key} is 2 but rollout.max_staleness is 2"):
            parse_recipe({**raw, "rollout": {key: 2, "max_staleness": 2}}, source="test")
