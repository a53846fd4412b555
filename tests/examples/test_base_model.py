"""The base model: it learns, its optimizer promises what it says, and its batches hold what was drawn."""

import pytest
import safetensors.torch
import torch

from asyncrl.examples.base_model import orthogonalise
from asyncrl.examples.rows import (
    EOS_ID,
    PAD_ID,
    Mix,
    Pretraining,
    build_tokenizer,
    draw_addition,
    draw_examples,
    work_addition,
)
from asyncrl.model.unsampled import find_unsampled


@pytest.fixture(scope="module")
def base_model():
    # Imports transformers: seconds, which every process of a run of tests would pay.
    from asyncrl.examples import base_model

    return base_model


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def examples(count: int):
    return draw_examples(draw_addition, work_addition, mix=Mix(), count=count, seed=0, without=set())


def test_a_short_pretraining_lowers_the_loss(base_model):
    torch.manual_seed(0)
    model = base_model.build_model(256)
    optimizers = base_model.build_optimizers(model, matrix_learning_rate=0.03, learning_rate=2e-3)
    batches = base_model.make_batches(build_tokenizer(), examples(25 * 32), examples_per_batch=32)
    losses = list(base_model.train_model(model, batches, optimizers))
    assert len(losses) == 25
    # A guess among the vocabulary costs ln 32 = 3.47 nats.
    assert losses[0] == pytest.approx(3.47, abs=0.3)
    assert sum(losses[-5:]) / 5 < 1.7


def test_a_batch_trains_on_each_response_and_its_end_but_not_on_prompts_or_padding(base_model):
    drawn = list(examples(64))
    (batch,) = base_model.make_batches(build_tokenizer(), drawn, examples_per_batch=64)
    tokenizer = build_tokenizer()
    trained = [
        tokenizer.decode([token for token in row.tolist() if token not in (base_model.IGNORED, EOS_ID)])
        for _, targets in batch
        for row in targets
    ]
    assert sorted(trained) == sorted(example.response for example in drawn)
    assert sum(int((targets == EOS_ID).sum()) for _, targets in batch) == 64
    for tokens, targets in batch:
        assert tokens.shape == targets.shape
        assert torch.equal(tokens[:, 1:][targets[:, :-1] >= 0], targets[:, :-1][targets[:, :-1] >= 0])


def test_direct_answers_are_not_padded_to_the_length_of_worked_ones(base_model):
    (batch,) = base_model.make_batches(build_tokenizer(), examples(256), examples_per_batch=256)
    num_tokens = sum(tokens.numel() for tokens, _ in batch)
    num_padded = sum(int((tokens == 2).sum()) for tokens, _ in batch)
    assert num_padded < 0.15 * num_tokens


def test_no_row_is_shorter_than_others_and_the_pad_is_never_sampled(base_model, tmp_path):
    settings = Pretraining(examples_per_batch=16)
    drawn = examples(32)
    base_model.make_base_model(tmp_path, build_tokenizer(), drawn, settings, lambda *_: None)
    # As many threads as OMP_NUM_THREADS says.
    assert torch.get_num_threads() == 1
    (rows, head) = (
        safetensors.torch.load_file(tmp_path / "model.safetensors")[name].norm(dim=1)
        for name in ("model.embed_tokens.weight", "lm_head.weight")
    )
    assert rows.min() > 0.5 * rows.median() and head.min() > 0.5 * head.median()
    assert find_unsampled(tmp_path).names == {PAD_ID: "<pad>"}


def test_singular_values_come_close_to_one_for_wide_and_tall_matrices():
    torch.manual_seed(0)
    for shape in [(3, 16, 16), (2, 16, 48), (2, 48, 16)]:
        values = torch.linalg.svdvals(orthogonalise(torch.randn(shape)))
        assert values.max() < 1.3
        # A random square matrix has values near zero that five rounds lift only part of the way.
        assert values.median() > 0.65


def test_the_singular_vectors_stay_the_same():
    torch.manual_seed(0)
    left, right = (torch.linalg.qr(torch.randn(8, 8))[0] for _ in range(2))
    matrix = left @ torch.diag(torch.linspace(1.0, 3.0, 8)) @ right.T
    diagonal = left.T @ orthogonalise(matrix[None])[0] @ right
    assert torch.allclose(diagonal, torch.diag(torch.diagonal(diagonal)), atol=1e-4)
