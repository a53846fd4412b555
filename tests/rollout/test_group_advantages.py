"""Advantages of a graded group, from what its verdicts hold."""

from asyncrl.algorithms.advantages import gdpo
from asyncrl.recipe import Algorithm
from asyncrl.records import Score, Segment, Trajectory
from asyncrl.rollout.group_advantages import worths_of

GDPO = Algorithm(advantage="gdpo")


def graded(name: str, scores: dict[str, float], credit: float = 0.0) -> tuple[Trajectory, Score]:
    trajectory = Trajectory(name, (1,), [Segment(0, [5, 6], [-1.0, -1.0])])
    credits = [(1, credit)] if credit else []
    return trajectory, Score("wrong", 0.0, 1.0, None, "", 0.0, credits=credits, scores=scores)


def advantages(*sampled: tuple[Trajectory, Score], algorithm: Algorithm = GDPO) -> list[float]:
    return [worth.advantage for worth in worths_of(sampled, None, gdpo, algorithm)]


def test_named_scores_reach_the_advantage_also_where_all_rewards_are_equal() -> None:
    high, low = advantages(graded("a", {"right": 1.0}), graded("b", {"right": 0.0}))
    assert high == -low > 0.7


def test_credits_are_one_more_named_score() -> None:
    pair = (graded("a", {"right": 1.0}, 0.25), graded("b", {"right": 0.0}, 1.25))
    assert advantages(*pair) == [0.0, 0.0]
    high, low = advantages(*pair, algorithm=Algorithm(advantage="gdpo", part_weights={"credits": 0.5}))
    assert high == -low > 0.3


def test_without_named_scores_credits_are_in_the_reward() -> None:
    high, low = advantages(graded("a", {}, 0.5), graded("b", {}))
    assert high == -low > 0.7
