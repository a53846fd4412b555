"""Dynamic sampling: by raw correctness, and never for ever."""

from pathlib import Path

from fakes.records import finish, generate, make_queue, make_score, make_task

from asyncrl.replay.group import DropReason, Group
from asyncrl.rollout.filter import SignalFilter
from asyncrl.types import Score


def make_group(*scores: Score) -> Group:
    return Group(0, make_task(), 0, [], scores={str(n): score for n, score in enumerate(scores)})


def test_a_group_without_signal_is_held_back_only_when_the_recipe_says_so() -> None:
    flat = make_group(make_score(1.0), make_score(1.0))
    assert SignalFilter(is_on=False, max_in_a_row=9).lets_through(flat)
    assert not SignalFilter(is_on=True, max_in_a_row=9).lets_through(flat)
    assert SignalFilter(is_on=True, max_in_a_row=9).lets_through(make_group(make_score(1.0), make_score(0.0)))


def test_shaping_makes_no_signal() -> None:
    shaped = [Score("wrong", 0.0, reward, None, "", 0.0) for reward in (0.0, -0.5)]
    assert not SignalFilter(is_on=True, max_in_a_row=9).lets_through(make_group(*shaped))


def test_after_many_in_a_row_one_is_let_through_so_that_the_run_goes_on() -> None:
    found = SignalFilter(is_on=True, max_in_a_row=2)
    flat = make_group(make_score(0.0), make_score(0.0))
    assert [found.lets_through(flat) for _ in range(6)] == [False, False, True, False, False, True]


def test_a_dropped_group_makes_room_and_its_tokens_are_in_the_books(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, batch=1, staleness=0, steps=1)
    queue.announce(0)
    flat = queue.admit(make_task(1))
    generate(queue, flat, version=0, num_tokens=3)
    queue.drop(flat, DropReason.NO_SIGNAL)
    finish(queue, queue.admit(make_task(2)), version=0, num_tokens=4)
    assert queue.take(0) is not None
    queue.commit(1, "folder")
    table = queue.conservation()
    # 2 trajectories each
    assert (table["generated"], table["trained"], table["dropped: no_signal"]) == (14, 8, 6)
