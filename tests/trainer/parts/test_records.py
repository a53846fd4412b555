"""Records that go with the next take: measurements of tokens, spikes of the gradient."""

import dataclasses
import math
from pathlib import Path

import pytest
import safetensors.torch
import torch
from fakes.learners import copy_weights, make_learner
from fakes.models import random_batch, reference_logprobs, reference_model, write_model, write_tokenizer

from asyncrl.errors import InputError
from asyncrl.journal.packing import unpack_halves
from asyncrl.records import Batch, TrainedTokens
from asyncrl.trainer.parts.records import FEWEST_NORMS, Spikes, TokenRecord, row_squares
from asyncrl.trainer.step.learner import Learner


def recorded(folder: Path, batch: Batch, *, num_groups: int = 2, **sections: dict) -> list[TrainedTokens]:
    learner = make_learner(folder, view={"groups_per_step": num_groups}, **sections)
    learner.step(batch)
    record = learner.part(TokenRecord)
    assert record is not None
    found = record.gathered()
    assert record.gathered() == []
    return found


def test_a_stored_ratio_is_the_trainers_log_prob_less_the_servers(folder: Path):
    batch = random_batch(1, temperature=0.8)
    found = {each.trajectory_id: each for each in recorded(folder, batch)}
    assert sorted(found) == [f"1-{group}-{member}" for group in (0, 1) for member in range(3)]
    model = reference_model(folder)
    for sequence in batch.sequences[:6]:
        behavior = torch.tensor(sequence.behavior_logprobs)
        wanted = reference_logprobs(model, sequence, batch.temperature).detach() - behavior
        assert unpack_halves(found[sequence.sequence_id].log_ratios) == pytest.approx(
            wanted.tolist(), abs=4e-3
        )
        entropies = unpack_halves(found[sequence.sequence_id].entropies)
        assert len(entropies) == len(wanted) and all(0 < each < math.log(100) for each in entropies)
        # The trajectory's own, which the journal has.
        assert found[sequence.sequence_id].advantages is None


def test_splitting_a_batch_changes_no_stored_number(folder: Path):
    batch = random_batch(2, num_groups=6, group_size=4)
    whole = recorded(folder, batch, num_groups=4)
    split = recorded(folder, batch, num_groups=4, trainer={"tokens_per_micro_batch": 30})
    assert len(whole) == 16
    for a, b in zip(whole, split, strict=True):
        assert a.trajectory_id == b.trajectory_id
        assert unpack_halves(a.log_ratios) == pytest.approx(unpack_halves(b.log_ratios), abs=4e-3)
        assert unpack_halves(a.entropies) == pytest.approx(unpack_halves(b.entropies), abs=4e-3)


def test_each_branch_has_a_record_of_its_own(folder: Path):
    batch = random_batch(2, num_groups=4, group_size=4)
    whole = {each.trajectory_id: each for each in recorded(folder, batch, num_groups=4)}
    # Each trajectory with the one behind it as its branch.
    sequences = [
        dataclasses.replace(one, sequence_id=f"{batch.sequences[i - 1].sequence_id}.1") if i % 2 else one
        for i, one in enumerate(batch.sequences)
    ]
    branched = recorded(folder, dataclasses.replace(batch, sequences=sequences), num_groups=4)
    names = {new.sequence_id: old.sequence_id for new, old in zip(sequences, batch.sequences, strict=True)}
    assert sorted(each.trajectory_id for each in branched) == sorted(names)
    for each in branched:
        wanted = whole[names[each.trajectory_id]]
        assert unpack_halves(each.log_ratios) == pytest.approx(unpack_halves(wanted.log_ratios), abs=4e-3)


def test_later_optimizer_steps_of_a_batch_keep_the_ratio_from_before_the_first(folder: Path):
    batch = random_batch(3, num_groups=4)
    once = recorded(folder, batch, num_groups=4)
    twice = recorded(
        folder, batch, num_groups=4, trainer={"optimizer_steps_per_batch": 2, "learning_rate": 0.05}
    )
    for a, b in zip(once, twice, strict=True):
        assert unpack_halves(a.log_ratios) == pytest.approx(unpack_halves(b.log_ratios), abs=4e-3)


def test_a_token_without_a_finite_log_prob_has_no_ratio_and_a_huge_one_is_clipped(folder: Path):
    batch = random_batch(4, num_groups=1, group_size=1, longest=40)
    (sequence,) = batch.sequences
    strange = [-1e6, -math.inf, math.nan, *sequence.behavior_logprobs[3:]]
    sequence = dataclasses.replace(sequence, behavior_logprobs=strange)
    assert len(sequence.response_tokens) > 3
    (found,) = recorded(folder, Batch(4, 1.0, [sequence]))
    ratios = unpack_halves(found.log_ratios)
    assert ratios[0] == 65504 and [math.isnan(each) for each in ratios[:4]] == [False, True, True, False]


def test_advantages_are_stored_where_they_differ_from_the_trajectorys(folder: Path):
    batch = random_batch(5)
    found = recorded(folder, batch, algorithm={"advantage": {"name": "gae", "gae_lambda": 0.9}})
    assert all(each.advantages is not None for each in found)
    lengths = {s.sequence_id: len(s.response_tokens) for s in batch.sequences}
    for each in found:
        assert len(unpack_halves(each.advantages or b"")) == lengths[each.trajectory_id]


def test_a_record_changes_nothing_of_the_step(folder: Path):
    batch, weights, metrics = random_batch(6), [], []
    for num_groups in (0, 4):
        learner = make_learner(folder, view={"groups_per_step": num_groups})
        metrics.append(learner.step(batch))
        weights.append(copy_weights(learner.model))
    assert {k: v for k, v in metrics[0].items() if v == v} == {k: v for k, v in metrics[1].items() if v == v}
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())


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
