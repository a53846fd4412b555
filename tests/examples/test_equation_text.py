"""Arithmetic text that holds no game, and whose parts do not depend on what equations come to."""

from collections import Counter
from functools import cache
from itertools import combinations
from random import Random
from statistics import fmean

import pytest

from asyncrl.examples.corpus import Example
from asyncrl.examples.countdown import LARGE, Game, is_prompt, solvable_games
from asyncrl.examples.equation_text import LineMix, draw_lines
from asyncrl.examples.search_steps import Equation, Unread, read_response, write_response
from verifiers.countdown import read_numbers


@cache
def held_out() -> frozenset[Game]:
    return frozenset(Random(0).sample(solvable_games(), 256))


@cache
def drawn() -> list[Example]:
    return list(draw_lines(LineMix(), count=800, seed=1, without=held_out()))


def equations(line: Example) -> list[Equation]:
    items = read_response(line.response).items
    assert not any(isinstance(item, Unread) for item in items), line
    return [item for item in items if isinstance(item, Equation)]


def test_all_that_a_line_says_is_true() -> None:
    for line in drawn():
        assert write_response(read_response(line.response)) == line.response
        for equation in equations(line):
            assert equation.is_true() and 0 <= equation.said < 100, line
            if equation.comparison:
                word, number = equation.comparison.word, equation.comparison.number
                assert number in line.terms
                assert (word == "is") == (equation.said == number) == (equation.said in line.terms), line


def test_an_equation_of_three_numbers_shows_its_step() -> None:
    for line in drawn():
        for equation in equations(line):
            assert len(read_numbers(equation.expression)) == 2 + len(equation.steps)
            assert all(len(read_numbers(step)) == 2 for step in equation.steps)


def test_no_head_is_a_prompt_and_none_holds_a_held_out_game() -> None:
    for line in drawn():
        assert not is_prompt(line.terms)
        for target in line.terms:
            rest = list(line.terms)
            rest.remove(target)
            assert not any(
                Game(numbers, target) in held_out() for numbers in combinations(sorted(rest), 3)
            ), line


def test_no_equation_solves_a_held_out_game() -> None:
    for line in drawn():
        for equation in equations(line):
            assert Game(tuple(sorted(read_numbers(equation.expression))), equation.said) not in held_out()


def test_no_equation_of_three_numbers_reaches_a_listed_number_of_two_digits() -> None:
    reached = Counter(
        len(read_numbers(equation.expression))
        for line in drawn()
        for equation in equations(line)
        if equation.said in set(line.terms) & set(LARGE)
    )
    # Those of two numbers do: without them the model would never have seen one reached.
    assert reached.keys() == {2} and reached[2] > 50


def test_without_the_rule_some_held_out_games_would_be_there() -> None:
    games = {
        Game(tuple(sorted(read_numbers(equation.expression))), equation.said)
        for line in draw_lines(LineMix(), count=1000, seed=1, without=())
        for equation in equations(line)
    }
    assert len(games & held_out()) > 20


def test_a_line_ends_and_is_quoted_as_often_after_an_equality_as_after_a_miss() -> None:
    is_last: dict[bool, list[bool]] = {True: [], False: []}
    is_quoted: dict[bool, list[bool]] = {True: [], False: []}
    for line in draw_lines(LineMix(compared=1.0), count=3000, seed=2, without=()):
        found = equations(line)
        words = [equation.comparison.word == "is" for equation in found if equation.comparison]
        for at, is_equal in enumerate(words):
            is_last[is_equal].append(at == len(found) - 1)
        is_quoted[words[-1]].append(read_response(line.response).answer == found[-1].expression)
    assert len(is_last[True]) > 1000
    for happened in (is_last, is_quoted):
        assert fmean(happened[True]) == pytest.approx(fmean(happened[False]), abs=0.06)


def test_shares_are_those_of_the_mix() -> None:
    mix = LineMix(compared=0.3, another=0.5, most_equations=4, answered=0.8, three=0.5)
    lines = list(draw_lines(mix, count=1000, seed=3, without=()))
    found = [equation for line in lines for equation in equations(line)]
    assert fmean(equation.comparison is not None for equation in found) == pytest.approx(0.3, abs=0.04)
    lengths = Counter(len(equations(line)) for line in lines)
    assert [lengths[n] / 1000 for n in (1, 2, 3, 4)] == pytest.approx([0.5, 0.25, 0.125, 0.125], abs=0.05)
    assert fmean("<answer>" in line.response for line in lines) == pytest.approx(0.8, abs=0.05)
