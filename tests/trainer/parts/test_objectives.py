"""Likelihood and preference: losses, gradients and columns against the formulas."""

from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.learners import copy_weights, make_learner
from fakes.models import random_batch, reference_logprobs, reference_model
from fakes.sequences import in_pairs, sampled_positions
from torch.nn.functional import logsigmoid

from asyncrl.records import Batch, ScoredSequence
from asyncrl.tasks.demonstration import of_tokens
from asyncrl.trainer.network.convert import export_weights
from asyncrl.trainer.step.learner import Learner
from asyncrl.trainer.step.part import MiniBatch

BETA = 0.5
BATCH = in_pairs(random_batch(1, num_groups=5, temperature=1.0))


def learner_of(folder: Path, run: Path, *, budget: int = 1000, **section: Any) -> Learner:
    trainer = {"tokens_per_micro_batch": budget, "learning_rate": 1e-2}
    return make_learner(
        folder, stage="dpo", dpo={"beta": BETA, **section}, trainer=trainer, run_folder=str(run)
    )


def expected(model: torch.nn.Module, references: list[torch.Tensor], loss: str) -> torch.Tensor:
    """The formula over the whole batch, response by response, and half of the NLL of the chosen ones."""
    total = torch.zeros((), dtype=torch.float64)
    found = [reference_logprobs(model, each, 1.0).double() for each in BATCH.sequences]
    for i in range(0, len(found), 2):
        if loss == "ipo":
            means = [(found[j] - references[j]).mean() for j in (i, i + 1)]
            own = (means[0] - means[1] - 1 / (2 * BETA)).square()
        else:
            sums = [(found[j] - references[j]).sum() for j in (i, i + 1)]
            own = -logsigmoid(BETA * (sums[0] - sums[1]))
        total = total + own - 0.5 * found[i].mean()
    return total / (len(found) // 2)


@pytest.mark.parametrize("loss", ["dpo", "ipo"])
def test_loss_and_gradient_are_those_of_the_formula_however_the_batch_is_split(
    folder: Path, tmp_path: Path, loss: str
) -> None:
    model = reference_model(folder)
    with torch.no_grad():
        references = [reference_logprobs(model, each, 1.0).double() for each in BATCH.sequences]
        # Not where policy and reference are one.
        model.model.embed_tokens.weight.mul_(1.1)
    wanted = expected(model, references, loss)
    wanted.backward()
    for budget in (1000, 20):
        learner = learner_of(folder, tmp_path / "run", budget=budget, loss=loss, nll_coefficient=0.5)
        with torch.no_grad():
            learner.model[0].embedding.word_embeddings.weight.mul_(1.1)
        (parts,) = learner.pack(learner.objective.finished(BATCH), 1)
        assert len(parts) == 1 if budget == 1000 else len(parts) > 2
        assert learner.accumulate(MiniBatch(parts, 1.0))["loss"] == pytest.approx(wanted.item(), abs=1e-5)
        found = dict(export_weights(learner.model, lambda parameter: parameter.main_grad.clone()))
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(found[name], parameter.grad, atol=2e-5, rtol=1e-3)


def test_the_reference_is_evaluated_once_and_a_resumed_run_takes_the_same_steps(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = learner_of(folder, tmp_path / "run")
    steps = [first.step(BATCH) for _ in range(2)]
    assert steps[1]["loss"] < steps[0]["loss"] == pytest.approx(0.6931472, abs=1e-6)
    assert (steps[0]["dpo_margin"], steps[1]["dpo_accuracy"]) == (pytest.approx(0, abs=1e-5), 1.0)
    (file,) = (tmp_path / "run/reference").iterdir()
    assert len(file.read_bytes()) == 24 * len(BATCH.sequences)
    with file.open("ab") as half:
        half.write(b"half of a record")

    again = learner_of(folder, tmp_path / "run")
    monkeypatch.setattr(again.passes, "whole_logprobs", lambda *_: pytest.fail("the reference was evaluated"))
    assert [again.step(BATCH) for _ in range(2)] == steps
    assert len(file.read_bytes()) == 24 * len(BATCH.sequences)
    assert again.measure(BATCH)["dpo_accuracy"] == 1.0
    monkeypatch.undo()
    again.measure(Batch(0, 1.0, in_pairs(random_batch(2)).sequences))
    assert len(file.read_bytes()) > 24 * len(BATCH.sequences)


def rows() -> list[ScoredSequence]:
    """Eight rows of two or three prompts; every other one has a turn of the user's inside."""
    found = []
    for i in range(8):
        prompt = [3, 5, 7 + i // 3]
        response = [(11 * i + 5 * j) % 40 for j in range(4 + 3 * i)]
        sampled = [not (i % 2 and j in (1, 2)) for j in range(len(response))]
        found.append(of_tokens(prompt, response, sampled).sequence(f"0000000{i}-00"))
    return found


def expected_mean(folder: Path, batch: list[ScoredSequence]) -> tuple[float, dict[str, torch.Tensor]]:
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
    wanted, gradients = expected_mean(folder, batch.sequences)
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
