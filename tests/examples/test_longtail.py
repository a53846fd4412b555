"""How a long sum is worked, and how widely the lengths are spread."""

from itertools import pairwise
from random import Random
from statistics import mean

import pytest

from asyncrl.examples.longtail import draw_long_sum, work_long_sum
from asyncrl.examples.tokenizer import build_tokenizer


def test_a_long_sum_is_worked_with_a_running_total():
    working = "06,02,00;26+39+15,06,00;39+48=13,11,01"
    assert work_long_sum((26, 39, 48), Random(0), 0.0) == (working, 113)


def test_sums_have_two_to_twenty_four_different_terms_of_two_digits():
    random = Random(0)
    drawn = [draw_long_sum(random) for _ in range(8000)]
    assert {len(terms) for terms in drawn} == set(range(2, 25))
    assert all(len(set(terms)) == len(terms) and 10 <= min(terms) <= max(terms) <= 49 for terms in drawn)


def test_the_longest_workings_are_several_times_the_mean():
    random, tokenizer = Random(0), build_tokenizer()
    workings = [work_long_sum(draw_long_sum(random), random, 0.0)[0] for _ in range(4000)]
    lengths = [len(tokenizer.encode(working, add_special_tokens=False).ids) for working in workings]
    assert min(lengths) == 23
    assert max(lengths) == 353
    assert max(lengths) > 3.5 * mean(lengths)


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_every_step_begins_as_the_prompt_does_there_and_is_consistent_slips_included(noise):
    random, num_slips = Random(1), 0
    for _ in range(300):
        terms = draw_long_sum(random)
        working, result = work_long_sum(terms, random, noise)
        first, *steps = working.split(";")
        assert _read(first) == terms[0]
        places = [f"{one}+{other}" for one, other in pairwise(terms)]
        assert [step[:6] for step in steps] == [f"{place}+" for place in places[:-1]] + [f"{places[-1]}="]
        totals = [terms[0], *(_read(step[6:]) for step in steps)]
        slips = [
            after - before - term for (before, after), term in zip(pairwise(totals), terms[1:], strict=True)
        ]
        assert {abs(slip) for slip in slips} <= {0, 1, 10, 100}
        assert totals[-1] == result
        num_slips += sum(map(bool, slips))
    assert (num_slips > 0) == (noise > 0)


def test_every_step_is_as_long_as_the_others():
    random = Random(1)
    for _ in range(300):
        first, *steps = work_long_sum(draw_long_sum(random), random, 0.0)[0].split(";")
        assert (len(first), {len(step) for step in steps}) == (8, {14})


def test_a_step_slips_as_often_as_the_noise_says():
    random, num_slips, num_steps = Random(2), 0, 0
    for _ in range(1500):
        terms = draw_long_sum(random)
        first, *steps = work_long_sum(terms, random, 0.03)[0].split(";")
        totals = [_read(first), *(_read(step[6:]) for step in steps)]
        num_slips += sum(
            after != before + term for (before, after), term in zip(pairwise(totals), terms[1:], strict=True)
        )
        num_steps += len(steps)
    assert num_slips / num_steps == pytest.approx(0.03, abs=0.006)


def _read(columns: str) -> int:
    """The total that the column sums stand for, carries included in the column they went to."""
    ones, tens, hundreds = columns.split(",")
    return int(hundreds) * 100 + int(tens) % 10 * 10 + int(ones) % 10
