"""Data and a base model for a sum task: long sums as they are written and worked."""

import json
from itertools import pairwise
from random import Random
from statistics import mean

import pytest
import torch

from asyncrl.errors import InputError
from asyncrl.examples.pretrain import (
    NAMES,
    SumsOptions,
    draw_long_sum,
    prepare,
    work_long_sum,
    write_long_sum,
)
from asyncrl.examples.rows import build_tokenizer, parse_options, row_of


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_prepare_writes_disjoint_rows_and_a_folder_that_transformers_loads(tmp_path):
    told = []
    options = {
        "task": "longtail",
        "num_train": 40,
        "num_heldout": 10,
        "num_examples": 32,
        "examples_per_batch": 8,
    }
    prepare(tmp_path, lambda *progress: told.append(progress), **options)
    train, heldout = (
        {row["prompt"]: row for row in map(json.loads, (tmp_path / name).read_text().splitlines())}
        for name in ("train.jsonl", "heldout.jsonl")
    )
    assert (len(train), len(heldout)) == (40, 10)
    assert not train.keys() & heldout.keys()
    assert told == [("base model", step, 4) for step in range(5)]
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id == 1
    ids = tokenizer("12+34=", return_tensors="pt")
    assert model.generate(**ids, max_new_tokens=4, do_sample=False).shape[1] <= ids.input_ids.shape[1] + 4


def test_an_unknown_option_is_refused_with_those_there_are():
    with pytest.raises(InputError, match=r"prepare.options.nois: .*Options: .*task, .*noise"):
        parse_options(SumsOptions, {"task": "arithmetic", "nois": 0.1})


def test_terms_have_names_in_the_prompt():
    assert row_of((7, 3, 9), write_long_sum) == {"prompt": "a7+b3+c9=", "answer": "19", "verifier": "math"}


def test_a_long_sum_is_worked_with_a_running_total():
    working = "a7+07,00,00;b3+10,01,00;c9=09,01,00"
    assert work_long_sum((7, 3, 9), Random(0), 0.0) == (working, 19)


def test_sums_have_two_to_twenty_four_digits():
    random = Random(0)
    drawn = [draw_long_sum(random) for _ in range(8000)]
    assert {len(terms) for terms in drawn} == set(range(2, 25))
    assert {term for terms in drawn for term in terms} == set(range(1, 10))


def test_the_longest_workings_are_several_times_the_mean():
    random, tokenizer = Random(0), build_tokenizer(NAMES)
    workings = [work_long_sum(draw_long_sum(random), random, 0.0)[0] for _ in range(4000)]
    lengths = [len(tokenizer.encode(working, add_special_tokens=False).ids) for working in workings]
    # Eleven tokens a step and a ";" between two: 2 terms have 23, 24 terms 287.
    assert (min(lengths), max(lengths)) == (23, 287)
    assert max(lengths) > 3.5 * mean(lengths)


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_every_step_copies_its_term_and_is_consistent_slips_included(noise):
    random, num_slips = Random(1), 0
    for _ in range(300):
        terms = draw_long_sum(random)
        working, result = work_long_sum(terms, random, noise)
        steps = working.split(";")
        assert "".join(step[:3] for step in steps) == write_long_sum(terms)
        totals = [0, *(_read(step[3:]) for step in steps)]
        slips = [after - before - term for (before, after), term in zip(pairwise(totals), terms, strict=True)]
        assert {abs(slip) for slip in slips} <= {0, 1, 10, 100}
        assert totals[-1] == result
        num_slips += sum(map(bool, slips))
    assert (num_slips > 0) == (noise > 0)


def _read(columns: str) -> int:
    """The total that the column sums stand for, carries included in the column they went to."""
    ones, tens, hundreds = columns.split(",")
    return int(hundreds) * 100 + int(tens) % 10 * 10 + int(ones) % 10
