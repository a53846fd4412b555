"""The data files, seeded, disjoint and right, and the character tokenizer in both libraries."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from asyncrl.examples.arithmetic import draw_addition
from asyncrl.examples.pretrain import draw_long_sum
from asyncrl.examples.rows import (
    VOCABULARY,
    build_tokenizer,
    draw_problems,
    problem_of,
    row_of,
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
