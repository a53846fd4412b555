"""Countdown with three numbers: games, rows, tokenizer, and what the verifier says to answers."""

import itertools
import json
from pathlib import Path
from random import Random
from statistics import median
from types import ModuleType

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
from asyncrl.examples.equation_text import LineMix, draw_lines
from verifiers.registry import load_verifier


@pytest.fixture(scope="module")
def made() -> ModuleType:
    # Imports transformers: seconds, which every process of a run of tests would pay.
    from asyncrl.examples import countdown_pretrain

    return countdown_pretrain


def rows_of(file: Path) -> list[Game]:
    return [game_of(json.loads(line)["prompt"]) for line in file.read_text("utf-8").splitlines()]


def test_every_game_is_trained_or_held_out_never_both(made: ModuleType, tmp_path: Path) -> None:
    told: list[str] = []
    made.prepare(tmp_path, lambda stage, done, total: told.append(stage), num_lines=8, examples_per_batch=4)
    train, heldout = rows_of(tmp_path / "train.jsonl"), rows_of(tmp_path / "heldout.jsonl")
    assert (len(train), len(heldout), len({*train, *heldout})) == (1063, 256, 1319)
    assert set(told) == {"base model"}
    assert (tmp_path / "model" / "tokenizer.json").exists()


def test_the_tokenizer_has_a_token_per_number_and_gives_lines_back(made: ModuleType) -> None:
    tokenizer = made.build_tokenizer()
    assert len(tokenizer.encode("3 5 7 22:").ids) == 9
    assert len(tokenizer.encode("3*5+7=15+7=22 is 22", add_special_tokens=False).ids) == 13
    for line in draw_lines(LineMix(), count=100, seed=0, without=()):
        ids = tokenizer.encode(line.prompt + line.response).ids
        assert tokenizer.decode(ids) == line.prompt + line.response
        assert len(ids) < made.CONTEXT_TOKENS


def test_batches_hold_lines_of_similar_length_and_every_line_once(made: ModuleType) -> None:
    lines = list(draw_lines(LineMix(), count=300, seed=0, without=()))
    ordered = made.batch_by_length(lines, 16, Random(0))
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
