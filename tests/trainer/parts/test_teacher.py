"""A step that a teacher gives advantages: against transformers, over splits, and what it reports."""

import dataclasses
import math
from pathlib import Path

import pytest
import torch
from fakes.columns import COLUMNS
from fakes.learners import copy_weights, make_learner
from fakes.models import random_batch, reference_logprobs, reference_model
from fakes.sequences import sampled_positions, scored_by_teacher, with_column, with_turns

from asyncrl.errors import InputError
from asyncrl.journal.packing import unpack_logprobs
from asyncrl.model.column_bytes import TEACHER_LOGPROBS, TEACHER_TOP, pack_top, unpack_top
from asyncrl.records import Batch
from asyncrl.trainer.network.convert import export_weights
from asyncrl.trainer.packing.batch import rank_micro_batches
from asyncrl.trainer.parts.teacher import with_teacher
from asyncrl.trainer.step.part import MiniBatch

TEACHER = {"path": "teacher", "coefficient": 0.5}
TOP = TEACHER | {"top_k": 5, "top_k_coefficient": 2.0}


def taught(batch: Batch, *, advantage: float | None = None, top_k: int = 0) -> Batch:
    """With a teacher's word on each sampled token, and with one advantage for all where it is given."""
    batch = scored_by_teacher(batch, top_k)
    if advantage is None:
        return batch
    sequences = [dataclasses.replace(one, advantage=advantage, turn_advantages=[]) for one in batch.sequences]
    return dataclasses.replace(batch, sequences=sequences)


@pytest.mark.parametrize("has_reward", [False, True])
def test_the_gradient_is_that_of_transformers_with_the_log_ratio_at_each_sampled_token(
    folder: Path, has_reward: bool
) -> None:
    batch = taught(with_turns(random_batch(1, temperature=0.8)), advantage=None if has_reward else 0.0)
    learner = make_learner(folder, teacher=TEACHER)
    micro_batches = rank_micro_batches(batch, budget_tokens=8192, rank=0, num_ranks=1, columns=COLUMNS)
    ((micro,),) = with_teacher([micro_batches], 0.5)
    metrics = learner.accumulate(MiniBatch([micro], batch.temperature))
    got = dict(export_weights(learner.model, lambda parameter: parameter.main_grad.clone()))

    model, total, num_tokens, gaps = reference_model(folder), torch.zeros(()), 0, torch.zeros(())
    for one in batch.sequences:
        current = reference_logprobs(model, one, 0.8)[sampled_positions(one)]
        behavior, teacher = (
            torch.tensor(one.behavior_logprobs),
            torch.tensor(unpack_logprobs(one.columns[TEACHER_LOGPROBS])),
        )
        weight = (
            (current.detach() - behavior).exp().clamp(max=learner.objective.algorithm.importance_weight.cap)
        )
        rewards = torch.cat([torch.full((count,), value) for count, value in one.advantage_runs()])
        total = total - (weight * (rewards - 0.5 * (behavior - teacher)) * current).sum()
        num_tokens, gaps = num_tokens + len(current), gaps + (behavior - teacher).sum()
    (total / num_tokens).backward()
    for name, parameter in model.named_parameters():
        assert (got[name] - parameter.grad).abs().max() < 1e-5 * parameter.grad.abs().max(), name
    assert metrics["teacher_kl"] == pytest.approx(gaps.item() / num_tokens, rel=1e-5)


def test_the_forward_kl_over_the_teachers_likeliest_tokens_has_the_gradient_of_transformers(
    folder: Path,
) -> None:
    batch = taught(with_turns(random_batch(1, temperature=0.8)), advantage=0.0, top_k=5)
    learner = make_learner(folder, teacher=TOP | {"coefficient": 0.0})
    (micro,) = rank_micro_batches(batch, budget_tokens=8192, rank=0, num_ranks=1, columns=COLUMNS)
    metrics = learner.accumulate(MiniBatch([micro], batch.temperature))
    got = dict(export_weights(learner.model, lambda parameter: parameter.main_grad.clone()))

    model, total, mass, num_tokens = reference_model(folder), torch.zeros(()), 0.0, 0
    for one in batch.sequences:
        ids, logs = (torch.tensor(each) for each in unpack_top(one.columns[TEACHER_TOP], one.num_sampled()))
        tokens = torch.tensor([*one.prompt_tokens, *one.response_tokens])
        places = torch.tensor(sampled_positions(one)) + len(one.prompt_tokens) - 1
        logits = model(tokens[None]).logits[0, places].float() / 0.8
        logits = logits.index_fill(1, torch.tensor(learner.unsampled.ids, dtype=torch.int64), -1e30)
        logprobs = torch.log_softmax(logits, -1).gather(1, ids.long())
        total = total + torch.where(logs > -math.inf, logs.exp() * (logs - logprobs), 0.0).sum()
        mass, num_tokens = mass + logs.exp().sum().item(), num_tokens + len(ids)
    (2.0 * total / num_tokens).backward()
    for name, parameter in model.named_parameters():
        assert (got[name] - parameter.grad).abs().max() < 1e-5 * parameter.grad.abs().max(), name
    assert metrics["teacher_forward_kl"] == pytest.approx(total.item() / num_tokens, rel=1e-5)
    assert metrics["loss"] == pytest.approx(2.0 * total.item() / num_tokens, rel=1e-5)
    assert metrics["teacher_top_mass"] == pytest.approx(mass / num_tokens, rel=1e-5)


@pytest.mark.parametrize("top_k", [0, 3])
def test_a_step_does_not_depend_on_how_its_batch_is_split(folder: Path, top_k: int) -> None:
    batch = taught(random_batch(2), advantage=0.0, top_k=top_k)
    found = []
    for budget in (8192, 40):
        teacher = TEACHER | ({"top_k": top_k} if top_k else {})
        learner = make_learner(folder, teacher=teacher, trainer={"tokens_per_micro_batch": budget})
        found.append((learner.step(batch), copy_weights(learner.model)))
    (whole, weights), (split, others) = found
    assert whole["loss"] != 0.0 and whole["grad_norm"] > 0.0
    for name in ("loss", "grad_norm", *(name for name in whole if name.startswith("teacher_"))):
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
    with pytest.raises(InputError, match=r"the teacher's 0 likeliest tokens, expected 5 \(teacher.top_k\)"):
        make_learner(folder, teacher=TOP).step(taught(batch))
    with pytest.raises(InputError, match=r"the teacher's 5 likeliest tokens, expected 0"):
        make_learner(folder, teacher=TEACHER).step(taught(batch, top_k=5))


def test_a_likeliest_token_that_the_policy_never_samples_is_refused_where_it_has_a_probability(
    folder: Path,
) -> None:
    learner, batch = make_learner(folder, teacher=TOP | {"top_k": 1}), random_batch(1)
    wrong = learner.shape.vocab_size
    for logprob, is_refused in [(-math.inf, False), (-0.1, True), (math.nan, True)]:
        sequences = [
            with_column(one, TEACHER_TOP, pack_top([[(logprob, wrong)]] * one.num_sampled(), ()))
            for one in scored_by_teacher(batch).sequences
        ]
        bad = dataclasses.replace(batch, sequences=sequences)
        if is_refused:
            with pytest.raises(InputError, match=rf"a likeliest token {wrong} of the teacher with"):
                learner.step(bad)
        else:
            assert learner.step(bad)["teacher_forward_kl"] == 0.0
