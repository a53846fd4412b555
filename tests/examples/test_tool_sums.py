"""Sums for which a calculator pays, and answers in the form of turns.call_format: tags."""

import json
import re
from pathlib import Path
from random import Random
from statistics import fmean

import pytest

from asyncrl.examples.tool_sums import (
    ToolSumsOptions,
    build_tokenizer,
    draw_corpus,
    draw_long,
    draw_short,
    is_long,
    prepare,
    respond,
)

OPTIONS = ToolSumsOptions(num_examples=400)


def test_long_sums_have_numbers_of_four_or_five_digits_and_short_ones_below_fifty() -> None:
    random = Random(0)
    for draw, lengths in ((draw_short, {1, 2}), (draw_long, {4, 5})):
        sums = [draw(random) for _ in range(400)]
        assert {len(str(number)) for terms in sums for number in terms} == lengths
        assert {is_long(terms) for terms in sums} == {draw is draw_long}
    assert all(max(draw_short(random)) < 50 for _ in range(400))


def test_a_call_holds_the_sum_and_its_output_is_what_the_calculator_says() -> None:
    from asyncrl.turns.built_in_tools import calculator

    for example in draw_corpus(OPTIONS, without=set()):
        if example.observed:
            call, _, rest = example.response.partition(example.observed)
            expression = call.removeprefix("<calculator>").removesuffix("</calculator>")
            value = calculator(expression)
            assert example.observed == f"<output>{value}</output>" and rest == f"\\boxed{{{value}}}"
            assert f"{expression}=" == example.prompt


def test_only_short_sums_are_right_without_a_call() -> None:
    for terms in ((12, 7), (0, 0), (49, 49)):
        answers = {respond(terms, Random(seed), called=0.0).response for seed in range(20)}
        assert answers == {f"\\boxed{{{sum(terms)}}}"}
    answers = {respond((1234, 56789), Random(seed), called=0.0).response for seed in range(50)}
    assert len(answers) > 40 and all(re.fullmatch(r"~\\boxed\{58\d{3}\}", answer) for answer in answers)


def test_the_kinds_of_sums_and_their_calls_have_the_shares_that_the_options_name() -> None:
    options = ToolSumsOptions(num_examples=4000, short=0.6, called_short=0.3, called_long=0.1)
    examples = list(draw_corpus(options, without=set()))
    long = [bool(example.observed) for example in examples if is_long(example.terms)]
    short = [bool(example.observed) for example in examples if not is_long(example.terms)]
    assert len(short) / len(examples) == pytest.approx(0.6, abs=0.03)
    assert (fmean(short), fmean(long)) == (pytest.approx(0.3, abs=0.04), pytest.approx(0.1, abs=0.03))


def test_held_out_sums_are_not_in_the_corpus() -> None:
    first = next(iter(draw_corpus(OPTIONS, without=set()))).terms
    left = draw_corpus(OPTIONS, without={(min(first), max(first))})
    assert all(sorted(example.terms) != sorted(first) for example in left)


def test_each_kind_has_rows_of_its_own_and_no_sum_is_both_trained_and_held_out(tmp_path: Path) -> None:
    told: list[str] = []
    options = {"num_train": 30, "num_heldout": 10, "num_examples": 4, "examples_per_batch": 4}
    prepare(tmp_path, lambda stage, done, total: told.append(stage), **options)
    assert set(told) == {"base model"}
    for kind in ("short", "long"):
        train, heldout = (
            {tuple(sorted(row["prompt"].strip("=").split("+"))) for row in rows_of(tmp_path / name / kind)}
            for name in ("train", "heldout")
        )
        assert (len(train), len(heldout), train & heldout) == (30, 10, set())
        assert {max(map(int, terms)) >= 50 for terms in train | heldout} == {kind == "long"}


def rows_of(file: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in file.with_suffix(".jsonl").read_text("utf-8").splitlines()]


def test_the_base_model_does_not_learn_what_the_calculator_writes() -> None:
    from asyncrl.examples import base_model

    example = respond((1234, 56789), Random(0), called=1.0)
    tokenizer = build_tokenizer()
    ids, are_learned = base_model._encode(tokenizer, example)
    learned = tokenizer.decode(
        [token for token, is_learned in zip(ids, are_learned, strict=True) if is_learned]
    )
    assert learned == "<calculator>1234+56789</calculator>\\boxed{58023}"
    assert tokenizer.decode(ids) == f"{example.prompt}{example.response}"
