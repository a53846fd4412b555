"""The data files, seeded, disjoint and right, and the character tokenizer in both libraries."""

import json
import re
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tokenizers import Tokenizer

from asyncrl.examples.pretrain import draw_long_sum, work_long_sum
from asyncrl.examples.rows import (
    OFFSETS,
    VOCABULARY,
    Mix,
    build_tokenizer,
    draw_addition,
    draw_examples,
    draw_problems,
    problem_of,
    row_of,
    work_addition,
    write_rows,
    write_tokenizer,
)


def test_a_row_is_one_that_a_user_could_have_written():
    assert row_of((347, 85)) == {"prompt": "347+85=", "answer": "432", "verifier": "math"}


@pytest.mark.parametrize("draw", [draw_addition, draw_long_sum])
def test_no_problem_is_drawn_twice_so_train_and_held_out_rows_are_disjoint(draw):
    problems = draw_problems(draw, count=3000, seed=0)
    assert len({problem_of(terms) for terms in problems}) == 3000


def test_the_order_of_the_terms_does_not_make_another_problem():
    assert problem_of((12, 34)) == problem_of((34, 12))


def test_the_same_seed_writes_the_same_bytes_and_another_seed_others(tmp_path):
    for name, seed in [("one", 0), ("same", 0), ("other", 1)]:
        write_rows(tmp_path / name, map(row_of, draw_problems(draw_addition, count=100, seed=seed)))
    one, same, other = ((tmp_path / name).read_bytes() for name in ("one", "same", "other"))
    assert one == same != other
    assert json.loads(one.splitlines()[0])["verifier"] == "math"


TEXTS = [
    "347+85=",
    "347+85=<think>7+5+0=12;4+8+1=13;3+0+1=4</think>\\boxed{432}",
    "58+89:17,14=147",
    " 1 , 2 . (3) ?\n",
    "}<think></think>\\boxed{",
]


def read_with_transformers(folder: Path) -> Any:
    from transformers import AutoTokenizer  # Slow to import.

    return AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("text", TEXTS)
def test_encoding_then_decoding_gives_the_text_back(text, tmp_path):
    write_tokenizer(tmp_path, build_tokenizer())
    plain, transformers = (
        Tokenizer.from_file(str(tmp_path / "tokenizer.json")),
        read_with_transformers(tmp_path),
    )
    ids = plain.encode(text).ids
    assert transformers.encode(text) == ids
    assert plain.decode(ids, skip_special_tokens=True) == text
    assert transformers.decode(ids, skip_special_tokens=True) == text


def test_the_first_token_is_bos_and_an_answer_has_one_token_per_marker_and_digit():
    tokens = build_tokenizer().encode("8+5=\\boxed{13}").tokens
    assert tokens == ["<bos>", "8", "+", "5", "=", "\\boxed{", "1", "3", "}"]


def test_special_tokens_have_the_first_ids_and_transformers_knows_them(tmp_path):
    write_tokenizer(tmp_path, build_tokenizer())
    tokenizer = read_with_transformers(tmp_path)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (0, 1, 2)
    assert len(tokenizer) == len(VOCABULARY) == len(set(VOCABULARY)) == 32


def test_a_character_outside_the_vocabulary_is_refused():
    with pytest.raises(Exception, match="Missing"):
        build_tokenizer().encode("two+3=")


def test_an_addition_is_worked_from_the_right_with_its_carries():
    assert work_addition((347, 85), Random(0), 0.0) == ("7+5+0=12;4+8+1=13;3+0+1=4", 432)


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


TASKS = [(draw_addition, work_addition), (draw_long_sum, work_long_sum)]


def boxed(response: str) -> int:
    return int(response.split("</think>")[-1].removeprefix("\\boxed{").removesuffix("}"))


@pytest.mark.parametrize(("draw", "work"), TASKS)
def test_three_quarters_answer_directly_and_half_of_those_are_wrong(draw, work):
    examples = list(draw_examples(draw, work, mix=Mix(), count=8000, seed=0, without=set()))
    direct = [example for example in examples if "<think>" not in example.response]
    errors = [boxed(example.response) - sum(example.terms) for example in direct]
    assert len(direct) / len(examples) == pytest.approx(0.75, abs=0.02)
    assert errors.count(0) / len(direct) == pytest.approx(0.5, abs=0.02)
    assert set(errors) == {0, *OFFSETS}


def test_worked_examples_think_first_and_box_what_the_working_came_to():
    mix = Mix(direct=0.0, noise=0.0)
    for example in draw_examples(draw_addition, work_addition, mix=mix, count=200, seed=0, without=set()):
        working, total = work_addition(example.terms, Random(0), 0.0)
        assert example.response == f"<think>{working}</think>\\boxed{{{total}}}"


def test_a_direct_answer_is_never_negative():
    examples = draw_examples(
        lambda random: (10, random.randrange(10, 20)),
        work_addition,
        mix=Mix(direct=1.0, wrong=1.0),
        count=300,
        seed=0,
        without=set(),
    )
    assert min(boxed(example.response) for example in examples) > 0


def test_held_out_problems_are_not_in_the_corpus():
    without = {problem_of((a, b)) for a in range(10, 100) for b in range(10, 100)}
    examples = draw_examples(draw_addition, work_addition, mix=Mix(), count=500, seed=0, without=without)
    assert without.isdisjoint(problem_of(example.terms) for example in examples)
