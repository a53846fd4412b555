"""How a long sum is worked, and how widely the lengths are spread."""

from itertools import pairwise
from random import Random
from statistics import mean

import pytest

from asyncrl.examples.longtail import draw_long_sum, work_long_sum
from asyncrl.examples.tokenizer import build_tokenizer


def test_a_long_sum_is_worked_with_a_running_total():
    assert work_long_sum((58, 89, 26), Random(0), 0.0) == ("58+89:17,14=147;89+26:13,7,1=173", 173)


def test_sums_have_two_to_twenty_four_different_terms_of_two_digits():
    random = Random(0)
    drawn = [draw_long_sum(random) for _ in range(3000)]
    assert {len(terms) for terms in drawn} == set(range(2, 25))
    assert all(len(set(terms)) == len(terms) and 10 <= min(terms) <= max(terms) <= 99 for terms in drawn)


def test_the_longest_workings_are_several_times_the_mean_and_exceed_four_hundred_tokens():
    random, tokenizer = Random(0), build_tokenizer()
    workings = [work_long_sum(draw_long_sum(random), random, 0.0)[0] for _ in range(1000)]
    lengths = [len(tokenizer.encode(working).ids) for working in workings]
    assert min(lengths) < 20
    assert max(lengths) > 3 * mean(lengths)
    assert 400 < max(lengths) < 500


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_every_step_names_its_place_in_the_prompt_and_is_consistent_slips_included(noise):
    random = Random(1)
    for _ in range(300):
        terms = draw_long_sum(random)
        working, result = work_long_sum(terms, random, noise)
        steps, total, num_slips = working.split(";"), terms[0], 0
        assert len(steps) == len(terms) - 1
        for step, neighbours in zip(steps, pairwise(terms), strict=True):
            place, right = step.split(":")
            assert place == "{}+{}".format(*neighbours)
            columns, after = right.split("=")
            digits = [column[-1] for column in columns.split(",")[:-1]]
            assert int(after) == int(columns.split(",")[-1] + "".join(reversed(digits)))
            num_slips += int(after) != total + neighbours[1]
            total = int(after)
        assert total == result
        assert (noise == 0.0) <= (num_slips == 0)


def test_a_step_slips_as_often_as_the_noise_says():
    random, num_slips, num_steps = Random(2), 0, 0
    for _ in range(1500):
        terms = draw_long_sum(random)
        total = terms[0]
        for step, term in zip(work_long_sum(terms, random, 0.03)[0].split(";"), terms[1:], strict=True):
            after = int(step.split("=")[1])
            num_slips += after != total + term
            num_steps += 1
            total = after
    assert num_slips / num_steps == pytest.approx(0.03, abs=0.006)
