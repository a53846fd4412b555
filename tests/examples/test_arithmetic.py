"""How an addition is worked: values a reader can add by hand."""

import re
from random import Random

import pytest

from asyncrl.examples.arithmetic import draw_addition, read_columns, work_addition


def test_an_addition_is_worked_from_the_right_with_its_carries():
    assert work_addition((347, 85), Random(0), 0.0) == ("7+5+0=12;4+8+1=13;3+0+1=4", 432)


def test_the_last_carry_is_a_digit_of_the_sum():
    assert work_addition((99, 1), Random(0), 0.0) == ("9+1+0=10;9+0+1=10", 100)


def test_columns_are_read_with_each_carry_already_in_the_next_one():
    assert read_columns([12, 13, 4]) == 432


def test_numbers_have_two_to_four_digits_in_equal_shares():
    random = Random(0)
    lengths = [len(str(number)) for _ in range(3000) for number in draw_addition(random)]
    for length in (2, 3, 4):
        assert lengths.count(length) / len(lengths) == pytest.approx(1 / 3, abs=0.03)


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_every_working_is_consistent_with_its_carries_and_its_result_slips_included(noise):
    random = Random(1)
    for _ in range(500):
        terms = draw_addition(random)
        working, total = work_addition(terms, random, noise)
        carry, digits, num_slips = 0, "", 0
        for step in working.split(";"):
            first, second, brought, column = map(int, re.fullmatch(r"(\d)\+(\d)\+(\d)=(\d+)", step).groups())
            assert brought == carry
            assert abs(column - (first + second + carry)) <= 1
            num_slips += column != first + second + carry
            digits, carry = f"{column % 10}{digits}", column // 10
        assert int(f"{carry}{digits}") == total
        assert (total == sum(terms)) or num_slips


def test_a_step_slips_as_often_as_the_noise_says():
    random, num_slips, num_steps = Random(2), 0, 0
    for _ in range(4000):
        for step in work_addition(draw_addition(random), random, 0.03)[0].split(";"):
            left, column = step.split("=")
            num_slips += sum(map(int, left.split("+"))) != int(column)
            num_steps += 1
    assert num_slips / num_steps == pytest.approx(0.03, abs=0.006)
