"""pass@k, maj@k and best@k of samples, their curves over k, and how two models' curves differ."""

import itertools
import json
import math
import random
from collections import Counter
from fractions import Fraction

import pytest

from asyncrl.observe.metrics import sample_curves
from asyncrl.observe.metrics.estimates import paired_difference, pass_at_k
from asyncrl.observe.metrics.sample_curves import (
    Contrast,
    DifferenceAt,
    Tally,
    best_of_draws,
    chances_of_a_correct_draw,
    chances_of_election,
    chosen,
    compare,
    contrast,
    curves_of,
    sentence_of,
)

SURE = Tally(4, 4, ((4, 4),))
HALF = Tally(4, 2, ((2, 2), (1, 0), (1, 0)))
NEVER = Tally(4, 0, ((3, 0),))
RARE = Tally(4, 1, ((3, 0), (1, 1)))


def test_the_curve_of_pass_at_k_has_the_interval_of_each_pass_at_k() -> None:
    tallies = [SURE, HALF, NEVER, RARE]
    samples = [[True] * t.num_correct + [False] * (4 - t.num_correct) for t in tallies]
    curve = curves_of(tallies)["pass"]
    for k in (1, 2, 3, 4):
        expected = pass_at_k(samples, k)
        found = (curve["mean"][k - 1], curve["low"][k - 1], curve["high"][k - 1], curve["num_tasks"][k - 1])
        assert found == pytest.approx((expected.mean, expected.low, expected.high, expected.num_tasks))


def test_maj_at_k_counts_the_chance_of_every_correct_answer() -> None:
    # Of 4 samples 2 are right, the others differ. Three of them are both right ones in 2 of 4 subsets; in the
    # other two the three answers are tied.
    assert HALF.majority() == pytest.approx((0.5, 0.5, (2 + 2 / 3) / 4, 1.0))
    # Two right answers that the verifier cannot tell are one: 1 + 1 of 4 against 2 wrong ones alike.
    split = Tally(4, 2, ((2, 0), (1, 1), (1, 1)))
    assert (split.majority()[0], split.majority()[-1]) == (0.5, 0.0)
    # An answer with both verdicts is right by their share.
    assert Tally(2, 1, ((2, 1),)).majority() == (0.5, 0.5)


def test_measures_that_the_verdicts_do_not_allow_are_left_out() -> None:
    assert list(curves_of([SURE, NEVER])) == ["pass", "maj"]
    assert list(curves_of([Tally(2, 1, None), Tally(0, 0, ())])) == ["pass"]
    graded = [Tally(2, 0, None, (0.5, 0.25)), Tally(2, 1, None, (1.0, 0.0))]
    curves = curves_of(graded)
    assert list(curves) == ["pass", "best"]
    assert curves["best"]["mean"] == pytest.approx([(0.375 + 0.5) / 2, 0.75])


def test_a_task_with_a_fault_leaves_the_curve_where_its_samples_end() -> None:
    curve = curves_of([SURE, Tally(2, 0, ((2, 0),))])["pass"]
    assert (curve["num_tasks"], curve["mean"]) == ([2, 2, 1, 1], [0.5, 0.5, 1.0, 1.0])


def test_the_difference_of_two_models_is_paired_as_by_every_command() -> None:
    before, after = [NEVER, RARE, HALF], [RARE, HALF, SURE]
    found = contrast(before, after, "pass")
    assert found is not None
    assert [each["k"] for each in found["differences"]] == chosen(4) == [1, 2, 4]
    for at in found["differences"]:
        sides = [[tally.passed()[at["k"] - 1] for tally in side] for side in (before, after)]
        expected = paired_difference(*sides)
        assert (at["mean"], at["low"], at["high"]) == (expected.mean, expected.low, expected.high)
    assert contrast([NEVER], [Tally(0, 0, ())], "pass") is None


def test_curves_cross_where_the_other_model_takes_the_lead_for_good() -> None:
    # Two tasks: one model solves one always, the other solves both, each in 1 of 4 samples.
    found = contrast([RARE, RARE], [SURE, NEVER], "pass")
    assert found is not None
    # 2 x (k / 4) against 1: level at k = 2, behind from 3 on.
    assert found["crossing"] == 3
    ahead = contrast([NEVER, NEVER], [SURE, SURE], "pass")
    assert ahead is not None and ahead["crossing"] is None


def at(mean: float, low: float, high: float, *, crossing: int | None = None) -> Contrast:
    return Contrast(
        differences=[DifferenceAt(k=64, mean=mean, low=low, high=high, num_tasks=9)], crossing=crossing
    )


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (
            at(0.1, 0.02, 0.2),
            "At k = 64 step 8 solves more tasks than base (step 8 less base: +10.0 points, 95% +2.0 to "
            "+20.0): training widened what the model solves within 64 samples.",
        ),
        (
            at(-0.1, -0.2, -0.02, crossing=9),
            "The curves cross at k = 9; at k = 64 base solves more tasks than step 8 (step 8 less base: "
            "-10.0 points, 95% -20.0 to -2.0): training narrowed what the model solves within 64 samples.",
        ),
        (
            at(0.01, -0.1, 0.12),
            "At k = 64 the 95% interval of the difference between step 8 and base holds 0 (+1.0 points, 95% "
            "-10.0 to +12.0): whether step 8 solves more tasks than base within 64 samples is open.",
        ),
    ],
)
def test_one_sentence_says_whether_training_widened_what_the_model_solves(
    found: Contrast, sentence: str
) -> None:
    assert sentence_of("base", "step 8", found) == sentence
    assert "training" not in sentence_of("step 4", "step 8", found)


def test_a_tally_returns_from_json_as_it_was() -> None:
    for tally in (SURE, HALF, Tally(2, 0, None, (0.5, 0.25))):
        assert Tally.of_json(json.loads(json.dumps(tally.as_json()))) == tally


def test_models_are_compared_with_the_first_one_that_has_samples() -> None:
    found = compare(["base", "step 8"], [[NEVER, RARE], [RARE, SURE]])
    assert found["contrasts"]["pass"][0] is None and found["contrasts"]["maj"][1] is not None
    assert len(found["sentences"]) == 1 and "step 8" in found["sentences"][0]


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
