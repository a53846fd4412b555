"""The loss of supervised fine-tuning, beside transformers and however a batch is split."""

from pathlib import Path

import pytest
import torch
from fakes.learners import copy_weights, make_learner
from fakes.models import reference_model
from fakes.sequences import sampled_positions

from asyncrl.records import Batch, ScoredSequence
from asyncrl.tasks.demonstration import of_tokens
from asyncrl.trainer.network.convert import export_weights
from asyncrl.trainer.step.part import MiniBatch


def rows() -> list[ScoredSequence]:
    """Eight rows of two or three prompts; every other one has a turn of the user's inside."""
    found = []
    for i in range(8):
        prompt = [3, 5, 7 + i // 3]
        response = [(11 * i + 5 * j) % 40 for j in range(4 + 3 * i)]
        sampled = [not (i % 2 and j in (1, 2)) for j in range(len(response))]
        found.append(of_tokens(prompt, response, sampled).sequence(f"0000000{i}-00"))
    return found


def expected(folder: Path, batch: list[ScoredSequence]) -> tuple[float, dict[str, torch.Tensor]]:
    """The mean of -log p over the learned tokens as transformers has it, with labels of -100 for the others,
    and its gradient."""
    model, total, count = reference_model(folder), torch.zeros(()), 0
    for row in batch:
        tokens = row.prompt_tokens + row.response_tokens
        labels = [-100] * len(tokens)
        for place in sampled_positions(row):
            labels[len(row.prompt_tokens) + place] = tokens[len(row.prompt_tokens) + place]
        learned = sum(label >= 0 for label in labels)
        loss = model(input_ids=torch.tensor([tokens]), labels=torch.tensor([labels])).loss
        total, count = total + loss * learned, count + learned
    (total / count).backward()
    return (total / count).item(), {
        name: p.grad for name, p in model.named_parameters() if p.grad is not None
    }


def test_loss_and_gradient_are_those_of_transformers_however_the_batch_is_split(folder: Path) -> None:
    batch = Batch(0, 1.0, rows())
    wanted, gradients = expected(folder, batch.sequences)
    for budget in (1000, 30, 1):
        learner = make_learner(folder, stage="sft", trainer={"tokens_per_micro_batch": budget})
        (parts,) = learner.pack(batch, 1)
        assert len(parts) == 1 if budget == 1000 else len(parts) > 2
        metrics = learner.accumulate(MiniBatch(parts, 1.0))
        assert metrics["loss"] == pytest.approx(wanted, abs=1e-5)
        if budget == 1000:
            # What begins alike is computed once.
            num_tokens = sum(len(row.prompt_tokens) + len(row.response_tokens) for row in batch.sequences)
            assert metrics["num_packed_tokens"] < num_tokens
        assert metrics["num_tokens"] == sum(row.num_sampled() for row in batch.sequences)
        found = dict(export_weights(learner.model, lambda parameter: parameter.main_grad.clone()))
        for name, gradient in gradients.items():
            torch.testing.assert_close(found[name], gradient, atol=1e-5, rtol=1e-3)


def test_measuring_changes_no_weight_and_a_step_lowers_the_loss(folder: Path) -> None:
    learner, batch = make_learner(folder, stage="sft", trainer={"learning_rate": 1e-2}), Batch(0, 1.0, rows())
    before = copy_weights(learner.model)
    first = learner.measure(batch)["loss"]
    after = copy_weights(learner.model)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert learner.step(batch)["loss"] == pytest.approx(first, rel=1e-6)
    assert learner.measure(batch)["loss"] < first - 0.1
