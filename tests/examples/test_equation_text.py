"""Arithmetic text that holds no game, and whose parts do not depend on what equations come to."""

from collections import Counter
from itertools import combinations
from random import Random
from statistics import fmean

import pytest

from asyncrl.examples.corpus import Example
from asyncrl.examples.countdown import LARGE, Game, is_prompt, solvable_games
from asyncrl.examples.equation_text import LineMix, draw_lines
from asyncrl.examples.search_steps import Equation, Unread, read_response, write_response
from verifiers.countdown import evaluate, read_numbers

HELD_OUT = frozenset(Random(0).sample(solvable_games(), 256))
LINES = list(draw_lines(LineMix(), count=800, seed=1, without=HELD_OUT))


def equations(line: Example) -> list[Equation]:
    items = read_response(line.response).items
    assert not any(isinstance(item, Unread) for item in items), line
    return [item for item in items if isinstance(item, Equation)]


def test_all_that_a_line_says_is_true() -> None:
    for line in LINES:
        assert write_response(read_response(line.response)) == line.response
        for equation in equations(line):
            assert equation.is_true() and 0 <= equation.said < 100, line
            if equation.comparison:
                word, number = equation.comparison.word, equation.comparison.number
                assert number in line.terms
                holds = {"is": equation.said == number, "not": equation.said != number}
                assert holds.get(word, (equation.said > number) == (word == "over")), line


def test_no_head_is_a_prompt_and_none_holds_a_held_out_game() -> None:
    for line in LINES:
        assert not is_prompt(line.terms)
        for target in line.terms:
            rest = list(line.terms)
            rest.remove(target)
            assert not any(Game(numbers, target) in HELD_OUT for numbers in combinations(sorted(rest), 3)), (
                line
            )


def test_no_equation_solves_a_held_out_game() -> None:
    for line in LINES:
        for equation in equations(line):
            assert Game(tuple(sorted(read_numbers(equation.expression))), equation.said) not in HELD_OUT


def test_no_answer_solves_a_game() -> None:
    answers = [(line, read_response(line.response).answer) for line in LINES]
    given = [(line, answer) for line, answer in answers if answer is not None]
    assert len(given) > 400
    for line, answer in given:
        rest = Counter(line.terms) - Counter(read_numbers(answer))
        assert len(read_numbers(answer)) < 3 or evaluate(answer) not in rest.keys() & set(LARGE), line


def test_without_the_rule_some_held_out_games_would_be_there() -> None:
    games = {
        Game(tuple(sorted(read_numbers(equation.expression))), equation.said)
        for line in draw_lines(LineMix(), count=1000, seed=1, without=())
        for equation in equations(line)
    }
    assert len(games & HELD_OUT) > 20


def test_a_line_ends_as_often_after_an_equality_as_after_a_miss() -> None:
    is_last: dict[bool, list[bool]] = {True: [], False: []}
    for line in draw_lines(LineMix(compared=1.0), count=1500, seed=2, without=()):
        found = equations(line)
        for at, equation in enumerate(found):
            assert equation.comparison is not None
            is_last[equation.comparison.word == "is"].append(at == len(found) - 1)
    assert len(is_last[True]) > 300
    assert fmean(is_last[True]) == pytest.approx(fmean(is_last[False]), abs=0.07)


def test_shares_are_those_of_the_mix() -> None:
    mix = LineMix(compared=0.3, answered=0.8, three=0.5, chained=0.0, large=0.0, most_equations=4)
    lines = list(draw_lines(mix, count=1000, seed=3, without=()))
    found = [equation for line in lines for equation in equations(line)]
    assert fmean(equation.comparison is not None for equation in found) == pytest.approx(0.3, abs=0.03)
    assert fmean(len(read_numbers(equation.expression)) == 3 for equation in found) == pytest.approx(
        0.5, abs=0.1
    )
    assert Counter(len(equations(line)) for line in lines).keys() == {1, 2, 3, 4}
    assert fmean("<answer>" in line.response for line in lines) == pytest.approx(0.8, abs=0.05)


def test_the_same_seed_draws_the_same_lines() -> None:
    drawn = [list(draw_lines(LineMix(), count=30, seed=seed, without=())) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
