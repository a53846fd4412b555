"""A token whose row is zero, sampled once, makes the gradient of its step; the trainer names its row."""

from pathlib import Path

import pytest
import safetensors.torch
import torch
from fakes.learners import make_learner
from fakes.models import random_batch, write_model, write_tokenizer

from asyncrl.errors import InputError
from asyncrl.trainer.parts.records import FEWEST_NORMS, Spikes, row_squares
from asyncrl.trainer.step.learner import Learner

PAD = 39


@pytest.fixture(scope="module", params=["normal", "tied"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose last row is zero, as transformers makes that of a pad."""
    folder = write_model(tmp_path_factory.mktemp("model"), tie_word_embeddings=request.param == "tied")
    file = folder / "model.safetensors"
    weights = safetensors.torch.load_file(file)
    weights["model.embed_tokens.weight"][PAD] = 0.0
    safetensors.torch.save_file(weights, file, metadata={"format": "pt"})
    return folder


def norms(learner: Learner, num_steps: int, *, pad_at: int | None = None) -> list[float]:
    found = []
    for step in range(num_steps):
        batch = random_batch(step, vocabulary=PAD)
        if step == pad_at:
            longest = max(batch.sequences, key=lambda each: len(each.response_tokens))
            longest.response_tokens[1] = PAD
        found.append(learner.step(batch)["grad_norm"])
    return found


def test_a_spike_names_the_row_that_made_it(folder: Path):
    learner = make_learner(folder, trainer={"learning_rate": 1e-6})
    found = norms(learner, FEWEST_NORMS + 1, pad_at=FEWEST_NORMS)
    spike = learner.part(Spikes).pop()
    assert spike is not None and learner.part(Spikes).pop() is None
    assert (spike.parameter, spike.row) == ("model.embed_tokens.weight", PAD)
    assert spike.share > 0.9 and spike.norm == found[-1]
    assert spike.times == pytest.approx(found[-1] / sorted(found[:-1])[FEWEST_NORMS // 2], rel=0.5)
    assert spike.times > 10


def test_usual_steps_are_not_looked_into(folder: Path, monkeypatch: pytest.MonkeyPatch):
    learner = make_learner(folder)
    monkeypatch.setattr(learner.part(Spikes), "largest_row", None)
    norms(learner, FEWEST_NORMS + 2)
    assert learner.part(Spikes).pop() is None


def test_a_run_that_never_samples_the_token_has_no_spike(folder: Path, tmp_path: Path):
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    write_tokenizer(tmp_path, range(PAD), pad=PAD)
    with pytest.raises(InputError, match="has the token 39"):
        norms(make_learner(tmp_path), 1, pad_at=0)
    learner = make_learner(tmp_path)
    norms(learner, FEWEST_NORMS + 2)
    assert learner.part(Spikes).pop() is None


def test_a_vector_is_one_row():
    assert row_squares(torch.tensor([3.0, 4.0])).tolist() == [25.0]
    assert row_squares(torch.tensor([[3.0, 4.0], [0.0, 2.0]])).tolist() == [25.0, 4.0]
