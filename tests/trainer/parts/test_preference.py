"""The loss of preference optimization, beside transformers; the reference is evaluated once."""

from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.learners import make_learner
from fakes.models import random_batch, reference_logprobs, reference_model
from fakes.sequences import in_pairs
from torch.nn.functional import logsigmoid

from asyncrl.records import Batch
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
