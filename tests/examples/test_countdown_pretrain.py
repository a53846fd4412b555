"""Rows and tokenizer of the Countdown example."""

import json
from pathlib import Path
from random import Random
from statistics import median
from types import ModuleType

import pytest

from asyncrl.errors import InputError
from asyncrl.examples.countdown import Game, game_of
from asyncrl.examples.equation_text import LineMix, draw_lines


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


def test_an_unknown_option_is_refused_with_those_there_are(made: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"prepare.options.lines: .*Options: .*num_heldout, num_lines"):
        made.prepare(tmp_path, lambda *progress: None, lines=3)


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
