"""Passes through a model: what they return, and what they cost."""

from pathlib import Path

import pytest
from fakes.learners import make_learner
from fakes.models import random_batch, write_model

from asyncrl.trainer.packing.batch import rank_micro_batches


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


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
    learner.accumulate(parts, 1.0)
    assert learner.passes.utilisation(1.0)["model_flops"] == pytest.approx(both)
    assert learner.passes.utilisation(1.0) == {"model_flops": 0.0, "mfu": 0.0}
