"""Passes through a model: what they return, and what they cost."""

from pathlib import Path

import pytest
from fakes.learners import make_learner
from fakes.models import random_batch
from fakes.sequences import with_kept_sets

from asyncrl.trainer.packing.batch import rank_micro_batches
from asyncrl.trainer.step.part import MiniBatch


def test_log_probs_come_by_micro_batch_and_have_no_gradient(folder: Path):
    learner = make_learner(folder)
    parts = rank_micro_batches(random_batch(1), budget_tokens=30, rank=0, num_ranks=1)
    found = learner.passes.logprobs(learner.parallel_chunks, parts, 1.0)
    assert [len(each) for each in found] == [len(micro.targets) for micro in parts] and len(parts) > 1
    assert not any(each.requires_grad for each in found)


def test_a_pass_forward_costs_a_third_of_one_with_gradients_and_each_is_counted_once(folder: Path):
    # A millionth of a TFLOP/s: a million operations in a second.
    learner = make_learner(folder, trainer={"peak_teraflops": 1e-6})
    parts = rank_micro_batches(random_batch(1), budget_tokens=30, rank=0, num_ranks=1)
    both = sum(micro.flops(learner.shape) for micro in parts)
    learner.passes.logprobs(learner.parallel_chunks, parts, 1.0)
    assert learner.passes.utilisation(2.0) == pytest.approx({"model_flops": both / 3, "mfu": both / 3 / 2e6})
    learner.accumulate(MiniBatch(parts, 1.0))
    assert learner.passes.utilisation(1.0)["model_flops"] == pytest.approx(both)
    assert learner.passes.utilisation(1.0) == {"model_flops": 0.0, "mfu": 0.0}


def test_log_probs_over_kept_sets_and_over_all_tokens_come_of_one_pass(folder: Path):
    learner = make_learner(folder)
    batch = random_batch(1)
    parts = rank_micro_batches(
        with_kept_sets(batch), budget_tokens=30, rank=0, num_ranks=1, columns=learner.columns()
    )
    both = learner.passes.both_logprobs(learner.parallel_chunks, parts, 1.0)
    kept = learner.passes.logprobs(learner.parallel_chunks, parts, 1.0)
    whole = learner.passes.whole_logprobs(learner.parallel_chunks, parts, 1.0)
    plain_parts = rank_micro_batches(batch, budget_tokens=30, rank=0, num_ranks=1)
    plain = learner.passes.logprobs(learner.parallel_chunks, plain_parts, 1.0)
    for (own, all_tokens), first, second, third in zip(both, kept, whole, plain, strict=True):
        assert own.equal(first) and all_tokens.tolist() == pytest.approx(second.tolist(), abs=1e-6)
        assert second.tolist() == pytest.approx(third.tolist(), abs=1e-6)
        # Over fewer tokens each one has more.
        assert (own >= all_tokens - 1e-6).all() and (own - all_tokens).max() > 0.1
