"""pass@k, maj@k and best@k of one task against the enumeration of all subsets of its samples."""

import itertools
import math
import random
from collections import Counter
from fractions import Fraction

import pytest

from asyncrl.observe.metrics import sample_curves
from asyncrl.observe.metrics.sample_curves import (
    best_of_draws,
    chances_of_a_correct_draw,
    chances_of_election,
)

NONE = None
"""The answer of a sample that has none."""


def election(answers: list[int | None], k: int) -> Fraction:
    """The chance that answer 0 is elected, by all subsets of k."""
    subsets = list(itertools.combinations(answers, k))
    total = Fraction(0)
    for subset in subsets:
        votes = Counter(answer for answer in subset if answer is not NONE)
        most = max(votes.values(), default=0)
        if votes[0] == most > 0:
            total += Fraction(1, sum(count == most for count in votes.values()))
    return total / len(subsets)


def test_pass_at_k_is_the_share_of_subsets_that_hold_a_correct_sample() -> None:
    for num_samples in range(1, 11):
        for num_correct in range(num_samples + 1):
            samples = [1] * num_correct + [0] * (num_samples - num_correct)
            found = chances_of_a_correct_draw(num_correct, num_samples)
            for k in range(1, num_samples + 1):
                subsets = list(itertools.combinations(samples, k))
                assert found[k - 1] == pytest.approx(sum(map(max, subsets)) / len(subsets), abs=1e-14)


def test_pass_at_k_of_many_samples_is_as_exact_as_with_whole_numbers() -> None:
    found = chances_of_a_correct_draw(3, 4096)
    for k in (1, 64, 4000, 4096):
        none = Fraction(math.comb(4093, k), math.comb(4096, k))
        assert found[k - 1] == pytest.approx(float(1 - none), rel=1e-11)
    # One in a million is neither lost nor more than certain.
    assert chances_of_a_correct_draw(1, 10**6)[0] == pytest.approx(1e-6, rel=1e-9)
    assert chances_of_a_correct_draw(1, 1000)[-1] == 1.0


def test_maj_at_k_is_the_share_of_subsets_that_elect_the_answer() -> None:
    source = random.Random(0)
    for _ in range(60):
        others = tuple(source.randint(1, 3) for _ in range(source.randint(0, 3)))
        num_votes, num_without = source.randint(0, 4), source.randint(0, 2)
        answers: list[int | None] = [0] * num_votes + [NONE] * num_without
        for answer, size in enumerate(others, start=1):
            answers += [answer] * size
        found = chances_of_election(num_votes, others, num_without)
        assert len(found) == len(answers)
        for k in range(1, len(answers) + 1):
            assert found[k - 1] == pytest.approx(float(election(answers, k)), abs=1e-11)


def test_a_tie_is_shared_and_no_vote_elects_nothing() -> None:
    assert chances_of_election(1, (1,), 0) == (0.5, 0.5)
    assert chances_of_election(1, (1, 1), 0)[2] == pytest.approx(1 / 3)
    assert chances_of_election(0, (), 3) == (0.0, 0.0, 0.0)
    # A sample without an answer does not vote: with the other it elects that.
    assert chances_of_election(1, (), 1) == (0.5, 1.0)


def test_a_vote_of_more_samples_is_estimated_from_a_fixed_seed_near_the_exact_one() -> None:
    shape = (60, (50, 30, 20), 10)
    estimated = sample_curves._sampled(*shape)
    assert estimated == sample_curves._sampled(*shape)
    for k, exact in enumerate(sample_curves._counted(*shape)):
        # Five standard errors of a share over the orders.
        assert abs(estimated[k] - exact) < 5 * 0.5 / math.sqrt(sample_curves.NUM_ORDERS)
    assert chances_of_election(200, (100,), 0)[-1] == 1.0


def test_best_at_k_is_the_mean_of_the_highest_score_over_subsets() -> None:
    source = random.Random(1)
    for num in range(1, 9):
        scores = [source.choice((0.0, 0.25, 0.5, 1.0)) for _ in range(num)]
        found = best_of_draws(scores)
        for k in range(1, num + 1):
            subsets = list(itertools.combinations(scores, k))
            assert found[k - 1] == pytest.approx(sum(map(max, subsets)) / len(subsets), abs=1e-12)
    assert best_of_draws(()) == ()
