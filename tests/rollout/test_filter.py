"""Dynamic sampling: by raw correctness, and never without end."""

from pathlib import Path

import pytest
from fakes.records import correctness_differs, finish, generate, make_queue, make_score, make_task

from asyncrl.algorithms.advantages import ADVANTAGES
from asyncrl.recipe import Algorithm
from asyncrl.records import DropReason, Score, Segment, Trajectory
from asyncrl.replay.group import Group
from asyncrl.rollout.filter import SignalFilter, group_signal


def make_group(*scores: Score) -> Group:
    return Group(0, make_task(), 0, [], scores={str(n): score for n, score in enumerate(scores)})


def test_a_group_without_signal_is_held_back_only_when_the_recipe_says_so() -> None:
    flat = make_group(make_score(1.0), make_score(1.0))
    assert SignalFilter(is_on=False, max_in_a_row=9, has_signal=correctness_differs).lets_through(flat)
    assert not SignalFilter(is_on=True, max_in_a_row=9, has_signal=correctness_differs).lets_through(flat)
    assert SignalFilter(is_on=True, max_in_a_row=9, has_signal=correctness_differs).lets_through(
        make_group(make_score(1.0), make_score(0.0))
    )


def group_of(*correctness: float, greedy: float | None = None, shaping: float = 0.0) -> Group:
    """One trajectory each, of 3, 4, ... tokens; rewards are shaped by their number."""
    group = Group(0, make_task(), 0, [])
    everyone = [*correctness, *([] if greedy is None else [greedy])]
    for i, right in enumerate(everyone):
        trajectory = Trajectory(str(i), (1,), is_greedy=i == len(correctness))
        trajectory.segments.append(Segment(0, [1] * (i + 3), [-0.5] * (i + 3)))
        group.trajectories.append(trajectory)
        group.scores[str(i)] = Score("correct", right, right - shaping * i, None, "", 0.0)
    return group


SIGNALS = {
    # advantage: all right, all wrong, one of four right, and one wrong of four
    "grpo": (False, False, True, True),
    "dr_grpo": (False, False, True, True),
    "rloo": (False, False, True, True),
    "opo": (False, False, True, True),
    "reinforce_pp_baseline": (False, False, True, True),
    # Of each three of them one is right.
    "pass_at_k_training": (False, False, True, False),
    "gdpo": (False, False, True, True),
    "max_rl": (False, False, True, True),
    # Its greedy answer is right: wrong samples have an advantage, right ones none.
    "remax": (False, True, True, True),
    # With k = 3 and one wrong of four each three hold a second right answer: nobody adds anything.
    "pass_at_k": (False, False, True, False),
    "w_reinforce": (True, True, True, True),
    "asym_re": (True, True, True, True),
    "reinforce_pp": (True, True, True, True),
    "batch_mean": (True, True, True, True),
    "gae": (True, True, True, True),
}


@pytest.mark.parametrize("name", sorted(ADVANTAGES))
def test_the_advantage_says_which_groups_have_a_gradient(name: str) -> None:
    algorithm = Algorithm(advantage={"name": name, "k": 3} if name.startswith("pass_at_k") else name)
    has_signal = group_signal(ADVANTAGES[name], algorithm)
    greedy = 1.0 if algorithm.needs_greedy() else None
    groups = ([1.0] * 4, [0.0] * 4, [1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 1.0, 1.0])
    found = tuple(has_signal(group_of(*rewards, greedy=greedy)) for rewards in groups)
    assert found == SIGNALS[name]
    for rewards, has_one in zip(groups, found, strict=True):
        filtered = SignalFilter(is_on=True, max_in_a_row=9, has_signal=has_signal)
        assert filtered.lets_through(group_of(*rewards, greedy=greedy)) == has_one


def test_shaping_gives_no_group_a_gradient_that_its_correctness_does_not() -> None:
    has_signal = group_signal(ADVANTAGES["grpo"], Algorithm())
    assert not has_signal(group_of(1.0, 1.0, 1.0, shaping=0.1))


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "opo", "pass_at_k"])
def test_correctness_one_rounding_apart_is_no_signal(name: str) -> None:
    has_signal = group_signal(
        ADVANTAGES[name],
        Algorithm(advantage={"name": name, "k": 2} if name.startswith("pass_at_k") else name),
    )
    assert not has_signal(group_of(1.0, 0.99999, 1.0))
    assert not has_signal(group_of(0.5, 0.4999999999999999, 0.5))
    assert has_signal(group_of(1.0, 0.99, 1.0))


def test_a_fault_is_no_answer_to_compare_with() -> None:
    has_signal = group_signal(ADVANTAGES["grpo"], Algorithm())
    group = group_of(1.0, 0.0, 0.0)
    group.scores["1"] = group.scores["2"] = make_score(None)
    assert not has_signal(group)


def test_after_many_in_a_row_one_is_let_through_so_that_the_run_continues() -> None:
    found = SignalFilter(is_on=True, max_in_a_row=2, has_signal=correctness_differs)
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
