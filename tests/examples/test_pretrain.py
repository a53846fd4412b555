"""Data and a base model for a sum task."""

import json

import pytest
import torch

from asyncrl.errors import InputError
from asyncrl.examples.pretrain import SumsOptions, prepare
from asyncrl.examples.rows import parse_options


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
