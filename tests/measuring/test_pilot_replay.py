"""Pilots replayed on whole groups: what they would have sampled, and what they would have given up."""

from pathlib import Path

import pytest
from fakes.records import make_queue, make_score, make_task

from asyncrl.records import DropReason, Finish, Segment
from asyncrl.system.places import JOURNAL
from tests.benchmarks.pilot_replay import Graded, read_groups, replay, whole_groups

GROUPS = [
    Graded("a", 0, [1.0, 0.0, 1.0, 1.0], [3, 3, 3, 3]),
    Graded("b", 0, [0.0, 0.0, 0.0, 0.0], [5, 5, 5, 5]),
    Graded("c", 1, [1.0, 1.0, 0.0, 1.0], [2, 2, 2, 2]),
]
"""Mixed in the pilot of 2; never mixed; mixed after it."""


def test_whole_groups_waste_the_tokens_of_those_with_one_reward() -> None:
    spent = whole_groups(GROUPS)
    assert (spent.tokens, spent.useful, spent.num_mixed) == (40, 20, 2)
    assert spent.waste() == pytest.approx(0.5)
    assert spent.tokens_per_mixed() == pytest.approx(20)


@pytest.mark.parametrize(
    ("min_chance", "tokens", "num_mixed"),
    [
        # Pilots of equal rewards are stopped: 12 + 10 + 4.
        (1.0, 26, 1),
        (0.0, 40, 2),
        # With nothing known of rows, two more answers of the same kind come with chance 3 / 5.
        (0.39, 40, 2),
        (0.41, 26, 1),
    ],
)
def test_a_replayed_pilot_stops_the_groups_that_the_rule_stops(
    min_chance: float, tokens: int, num_mixed: int
) -> None:
    spent = replay(GROUPS, 2, min_chance)
    assert (spent.tokens, spent.num_mixed) == (tokens, num_mixed)


def test_the_replayed_record_of_a_row_counts_half_after_the_half_life() -> None:
    """The first visit is mixed, so whole: one right and three wrong. One version later its pilot is wrong."""
    groups = [Graded("b", 0, [0.0, 1.0, 0.0, 0.0], [5] * 4), Graded("b", 1, [0.0, 0.0, 1.0, 0.0], [5] * 4)]
    kept = 0.5 ** (1 / 20)
    chance = 1 - (3 + 3 * kept) / (4 + 4 * kept) * (4 + 3 * kept) / (5 + 4 * kept)
    assert replay(groups, 2, chance - 0.001).tokens == 40
    assert replay(groups, 2, chance + 0.001).tokens == 30


def test_groups_are_read_in_the_order_of_grading_without_those_that_have_faults(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, batch=3)
    assert queue.journal.path.name == JOURNAL
    queue.announce(0)
    for number, rewards in enumerate([(1.0, 0.0), (1.0, 1.0), (None, 1.0)]):
        group = queue.admit(make_task(number))
        for length, trajectory, reward in zip((2, 3), group.trajectories, rewards, strict=True):
            queue.append(group, trajectory, [Segment(0, [7] * length, [-0.5] * length)], Finish.STOP)
            queue.score(group, trajectory, make_score(reward), "text")
        if number == 1:
            queue.drop(group, DropReason.NO_SIGNAL)
        else:
            names = [t.trajectory_id for t in group.trajectories]
            queue.make_ready(group, {n: 0.5 for n in names if group.scores[n].correctness is not None})
    queue.journal.close()
    assert read_groups(tmp_path) == [
        Graded("train:0", 0, [1.0, 0.0], [2, 3]),
        Graded("train:1", 0, [1.0, 1.0], [2, 3]),
    ]
    assert len(read_groups(tmp_path, until=1)) == 2
