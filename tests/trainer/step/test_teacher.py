"""A step that a teacher gives advantages: against transformers, over splits, and what it reports."""

import dataclasses
import random
from pathlib import Path

import pytest
import torch
from fakes.learners import copy_weights, make_learner
from fakes.models import random_batch, reference_logprobs, reference_model
from fakes.sequences import with_turns

from asyncrl.errors import InputError
from asyncrl.records import Batch
from asyncrl.trainer.network.convert import export_weights
from asyncrl.trainer.packing.batch import rank_micro_batches
from asyncrl.trainer.step.token_advantages import with_teacher

TEACHER = {"path": "teacher", "coefficient": 0.5}


def taught(batch: Batch, *, advantage: float | None = None) -> Batch:
    """With log-probs of a teacher for each sampled token, and with one advantage for all where it is "
    "given."""
    source = random.Random(7)
    sequences = [
        dataclasses.replace(
            one,
            teacher_logprobs=[source.uniform(-4, -0.1) for _ in range(one.num_sampled())],
            advantage=one.advantage if advantage is None else advantage,
            turn_advantages=one.turn_advantages if advantage is None else [],
        )
        for one in batch.sequences
    ]
    return dataclasses.replace(batch, sequences=sequences)


@pytest.mark.parametrize("has_reward", [False, True])
def test_the_gradient_is_that_of_transformers_with_the_log_ratio_at_each_sampled_token(
    folder: Path, has_reward: bool
) -> None:
    batch = taught(with_turns(random_batch(1, temperature=0.8)), advantage=None if has_reward else 0.0)
    learner = make_learner(folder, teacher=TEACHER)
    micro_batches = rank_micro_batches(batch, budget_tokens=8192, rank=0, num_ranks=1)
    ((micro,),) = with_teacher([micro_batches], 0.5)
    metrics = learner.accumulate([micro], batch.temperature)
    got = dict(export_weights(learner.model, lambda parameter: parameter.main_grad.clone()))

    model, total, num_tokens, gaps = reference_model(folder), torch.zeros(()), 0, torch.zeros(())
    for one in batch.sequences:
        current = reference_logprobs(model, one, 0.8)[one.sampled_positions()]
        behavior, teacher = torch.tensor(one.behavior_logprobs), torch.tensor(one.teacher_logprobs)
        weight = (current.detach() - behavior).exp().clamp(max=learner.algorithm.importance_cap)
        rewards = torch.cat([torch.full((count,), value) for count, value in one.advantage_runs()])
        total = total - (weight * (rewards - 0.5 * (behavior - teacher)) * current).sum()
        num_tokens, gaps = num_tokens + len(current), gaps + (behavior - teacher).sum()
    (total / num_tokens).backward()
    for name, parameter in model.named_parameters():
        assert (got[name] - parameter.grad).abs().max() < 1e-5 * parameter.grad.abs().max(), name
    assert metrics["teacher_kl"] == pytest.approx(gaps.item() / num_tokens, rel=1e-5)


def test_a_step_does_not_depend_on_how_its_batch_is_split(folder: Path) -> None:
    batch = taught(random_batch(2), advantage=0.0)
    found = []
    for budget in (8192, 40):
        learner = make_learner(folder, teacher=TEACHER, trainer={"tokens_per_micro_batch": budget})
        found.append((learner.step(batch), copy_weights(learner.model)))
    (whole, weights), (split, others) = found
    assert whole["loss"] != 0.0 and whole["grad_norm"] > 0.0
    for name in ("loss", "grad_norm", "teacher_kl"):
        assert split[name] == pytest.approx(whole[name], rel=1e-5)
    assert all(torch.allclose(weights[name], others[name], atol=1e-6) for name in weights)


def test_without_a_teacher_nothing_of_it_is_told(folder: Path) -> None:
    assert "teacher_kl" not in make_learner(folder).step(random_batch(1))


def test_responses_that_no_teacher_scored_are_refused_and_so_are_scores_without_a_teacher(
    folder: Path,
) -> None:
    batch = random_batch(1)
    with pytest.raises(InputError, match=r"has 0 log-probs of a teacher for the .* teacher.path is set"):
        make_learner(folder, teacher=TEACHER).step(batch)
    with pytest.raises(InputError, match=r"expected 0: teacher.path is not set"):
        make_learner(folder).step(taught(batch))
