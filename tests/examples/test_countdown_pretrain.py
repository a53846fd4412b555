"""Countdown with three numbers: games, rows, tokenizer, and what the verifier says to answers."""

import itertools
import json
from collections import Counter
from functools import cache
from itertools import combinations
from pathlib import Path
from random import Random
from statistics import fmean, median

import pytest

from asyncrl.errors import InputError
from asyncrl.examples.countdown_pretrain import (
    CONTEXT_TOKENS,
    LARGE,
    SMALL,
    Game,
    LineMix,
    batch_by_length,
    build_tokenizer,
    draw_lines,
    game_of,
    is_prompt,
    prepare,
    row_of,
    solvable_games,
    values_of,
)
from asyncrl.examples.rows import Example
from asyncrl.examples.search_report import Equation, Unread, read_response, write_response
from verifiers.countdown import read_numbers
from verifiers.registry import load_verifier


def rows_of(file: Path) -> list[Game]:
    return [game_of(json.loads(line)["prompt"]) for line in file.read_text("utf-8").splitlines()]


def test_every_game_is_trained_or_held_out_never_both(tmp_path: Path) -> None:
    told: list[str] = []
    prepare(tmp_path, lambda stage, done, total: told.append(stage), num_lines=8, examples_per_batch=4)
    train, heldout = rows_of(tmp_path / "train.jsonl"), rows_of(tmp_path / "heldout.jsonl")
    assert (len(train), len(heldout), len({*train, *heldout})) == (1063, 256, 1319)
    assert set(told) == {"base model"}
    assert (tmp_path / "model" / "tokenizer.json").exists()


def test_the_tokenizer_has_a_token_per_number_and_gives_lines_back() -> None:
    tokenizer = build_tokenizer()
    assert len(tokenizer.encode("3 5 7 22:").ids) == 9
    assert len(tokenizer.encode("3*5+7=15+7=22 is 22", add_special_tokens=False).ids) == 13
    for line in draw_lines(LineMix(), count=100, seed=0, without=()):
        ids = tokenizer.encode(line.prompt + line.response).ids
        assert tokenizer.decode(ids) == line.prompt + line.response
        assert len(ids) < CONTEXT_TOKENS


def test_batches_hold_lines_of_similar_length_and_every_line_once() -> None:
    lines = list(draw_lines(LineMix(), count=300, seed=0, without=()))
    ordered = batch_by_length(lines, 16, Random(0))
    assert sorted(line.prompt + line.response for line in ordered) == sorted(
        line.prompt + line.response for line in lines
    )
    lengths = [len(line.response) for line in ordered]
    spans = [max(lengths[at : at + 16]) - min(lengths[at : at + 16]) for at in range(0, 300, 16)]
    assert median(spans) < 20 < max(lengths) - min(lengths)
    means = [sum(lengths[at : at + 16]) for at in range(0, 288, 16)]
    assert means != sorted(means)


GAMES = solvable_games()


def outcome(answer: str, game: Game) -> str:
    verifier = load_verifier("countdown", {})
    gold = verifier.parse_reference(row_of(game, Random(0))["answer"])
    return verifier.verify(f"<answer>{answer}</answer>", gold).outcome.value


def expressions(numbers: tuple[int, ...]) -> set[str]:
    """Every way to write three numbers with two of + - *, parentheses or not."""
    return {
        text
        for a, b, c in itertools.permutations(numbers)
        for one, two in itertools.product("+-*", repeat=2)
        for text in (f"{a}{one}{b}{two}{c}", f"({a}{one}{b}){two}{c}", f"{a}{one}({b}{two}{c})")
    }


@pytest.mark.parametrize("numbers", [(1, 1, 1), (2, 3, 7), (4, 4, 9), (6, 8, 9)])
def test_values_are_those_of_all_expressions(numbers: tuple[int, ...]) -> None:
    assert values_of(numbers) == {eval(text) for text in expressions(numbers)}


def test_every_game_is_there_once_and_can_be_solved() -> None:
    assert len(set(GAMES)) == len(GAMES) == 1319
    for game in Random(0).sample(GAMES, 20):
        assert game.numbers == tuple(sorted(game.numbers)) and set(game.numbers) <= set(SMALL)
        assert game.target in LARGE
        right = [text for text in sorted(expressions(game.numbers)) if eval(text) == game.target]
        assert right and {outcome(text, game) for text in right} == {"correct"}


@pytest.mark.parametrize("answer", ["3*5+8", "3*5", "22-3*0", "3+5+7+7", "22", "3*5+7=22", "5*7-3", ""])
def test_answers_that_do_not_make_the_target_of_the_numbers_are_wrong(answer: str) -> None:
    game = Game((3, 5, 7), 22)
    assert outcome("7+3*5", game) == "correct"
    assert outcome(answer, game) == "wrong"


def test_a_prompt_lists_the_numbers_in_any_order_and_then_the_target() -> None:
    game = Game((3, 5, 7), 22)
    rows = [row_of(game, Random(seed)) for seed in range(40)]
    assert len({row["prompt"] for row in rows}) == 6
    for row in rows:
        assert game_of(row["prompt"]) == game
        assert row["answer"] == {"target": 22, "numbers": list(map(int, row["prompt"].split()[:3]))}


@pytest.mark.parametrize(
    "prompt", ["3 5 7:", "3 5 7 9:", "3 5 22 7:", "3 5 7 22", "3 5 7 22: ", "3 5 x 7 22:", ""]
)
def test_another_text_is_no_prompt(prompt: str) -> None:
    with pytest.raises(InputError, match="three numbers and a target"):
        game_of(prompt)


def test_heads_of_another_length_or_order_are_no_prompts() -> None:
    assert is_prompt((3, 5, 7, 22))
    assert not any(map(is_prompt, [(3, 5, 7), (3, 5, 22, 7), (3, 5, 7, 9), (3, 15, 7, 22), (3, 5, 7, 2, 22)]))


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
