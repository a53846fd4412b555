"""Countdown with three numbers: the games, their rows, and what the verifier says to answers of them."""

import itertools
from random import Random

import pytest

from asyncrl.errors import InputError
from asyncrl.examples.countdown import (
    LARGE,
    SMALL,
    Game,
    game_of,
    is_prompt,
    row_of,
    solvable_games,
    values_of,
)
from verifiers.registry import load_verifier

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
