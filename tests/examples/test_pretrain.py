"""The base model: it learns, its files load, and its batches hold what was drawn."""

import json

import pytest
import safetensors.torch
import torch

from asyncrl.errors import InputError
from asyncrl.examples.arithmetic import draw_addition, work_addition
from asyncrl.examples.corpus import Mix, draw_examples
from asyncrl.examples.options import parse_options
from asyncrl.examples.tokenizer import EOS_ID, PAD_ID, build_tokenizer
from asyncrl.model.unsampled import find_unsampled


@pytest.fixture(scope="module")
def pretrain():
    # Imports transformers: seconds, which every process of a run of tests would pay.
    from asyncrl.examples import pretrain

    return pretrain


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def examples(count: int):
    return draw_examples(draw_addition, work_addition, mix=Mix(), count=count, seed=0, without=set())


def test_a_short_pretraining_lowers_the_loss(pretrain):
    torch.manual_seed(0)
    model = pretrain.build_model(256)
    optimizers = pretrain.build_optimizers(model, matrix_learning_rate=0.03, learning_rate=2e-3)
    batches = pretrain.make_batches(build_tokenizer(), examples(25 * 32), examples_per_batch=32)
    losses = list(pretrain.train_model(model, batches, optimizers))
    assert len(losses) == 25
    # A guess among the vocabulary costs ln 32 = 3.47 nats.
    assert losses[0] == pytest.approx(3.47, abs=0.3)
    assert sum(losses[-5:]) / 5 < 1.7


def test_a_batch_trains_on_each_response_and_its_end_but_not_on_prompts_or_padding(pretrain):
    drawn = list(examples(64))
    (batch,) = pretrain.make_batches(build_tokenizer(), drawn, examples_per_batch=64)
    tokenizer = build_tokenizer()
    trained = [
        tokenizer.decode([token for token in row.tolist() if token not in (pretrain.IGNORED, EOS_ID)])
        for _, targets in batch
        for row in targets
    ]
    assert sorted(trained) == sorted(example.response for example in drawn)
    assert sum(int((targets == EOS_ID).sum()) for _, targets in batch) == 64
    for tokens, targets in batch:
        assert tokens.shape == targets.shape
        assert torch.equal(tokens[:, 1:][targets[:, :-1] >= 0], targets[:, :-1][targets[:, :-1] >= 0])


def test_direct_answers_are_not_padded_to_the_length_of_worked_ones(pretrain):
    (batch,) = pretrain.make_batches(build_tokenizer(), examples(256), examples_per_batch=256)
    num_tokens = sum(tokens.numel() for tokens, _ in batch)
    num_padded = sum(int((tokens == 2).sum()) for tokens, _ in batch)
    assert num_padded < 0.15 * num_tokens


def test_the_model_has_about_six_hundred_thousand_parameters(pretrain):
    assert sum(weight.numel() for weight in pretrain.build_model(256).parameters()) == pytest.approx(
        600e3, rel=0.02
    )


def test_no_row_is_shorter_than_others_and_the_pad_is_never_sampled(pretrain, tmp_path):
    settings = pretrain.Pretraining(examples_per_batch=16)
    drawn = examples(32)
    pretrain.make_base_model(tmp_path, build_tokenizer(), drawn, settings, lambda *_: None)
    # As many threads as OMP_NUM_THREADS says.
    assert torch.get_num_threads() == 1
    (rows, head) = (
        safetensors.torch.load_file(tmp_path / "model.safetensors")[name].norm(dim=1)
        for name in ("model.embed_tokens.weight", "lm_head.weight")
    )
    assert rows.min() > 0.5 * rows.median() and head.min() > 0.5 * head.median()
    assert find_unsampled(tmp_path).names == {PAD_ID: "<pad>"}


def test_prepare_writes_disjoint_rows_and_a_folder_that_transformers_loads(pretrain, tmp_path):
    told = []
    options = {
        "task": "longtail",
        "num_train": 40,
        "num_heldout": 10,
        "num_examples": 32,
        "examples_per_batch": 8,
    }
    pretrain.prepare(tmp_path, lambda *progress: told.append(progress), **options)
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


def test_an_unknown_option_is_refused_with_those_there_are(pretrain):
    with pytest.raises(InputError, match=r"prepare.options.nois: .*Options: .*task, .*noise"):
        parse_options(pretrain.SumsOptions, {"task": "arithmetic", "nois": 0.1})
