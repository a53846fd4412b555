"""Curves of models over k: their intervals and differences are those of the other estimates."""

import json

import pytest

from asyncrl.observe.metrics.estimates import paired_difference, pass_at_k
from asyncrl.observe.metrics.sample_curves import (
    Contrast,
    DifferenceAt,
    Tally,
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
