"""Learners on the weights of a model folder, in this process's group."""

from collections.abc import Callable
from pathlib import Path

import torch
from fakes.recipes import make_recipe
from torch import Tensor

from asyncrl.model.folder import check_model_folder
from asyncrl.records import Batch
from asyncrl.trainer.network.convert import export_weights
from asyncrl.trainer.network.model import Policy, PolicyModel
from asyncrl.trainer.packing.batch import rank_micro_batches
from asyncrl.trainer.parts.table import build_learner
from asyncrl.trainer.step.learner import Learner
from asyncrl.trainer.step.part import MiniBatch


def make_learner(folder: Path, **sections: dict) -> Learner:
    """At version 0; `sections` of the recipe differ from the defaults of `make_recipe`."""
    learner = build_learner(check_model_folder(folder), make_recipe(folder, **sections))
    learner.load_base()
    return learner


def copy_weights(model: Policy | PolicyModel) -> dict[str, Tensor]:
    """By their Hugging Face names, as they are now; a critic's value head by that of the output layer."""
    return {name: tensor.clone() for name, tensor in export_weights(model)}


def is_same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def gradient_of(
    learner: Learner, batch: Batch, moved: Callable[[Tensor], Tensor] | None = None
) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Metrics and gradient, under Hugging Face names, of one batch on this one rank.

    `moved`: from a micro-batch's tokens to how far the policy has moved since the proximal one at each.
    """
    budget = learner.section.tokens_per_micro_batch
    told, columns = learner.objective.told(batch), learner.columns()
    micro_batches = rank_micro_batches(told, budget_tokens=budget, rank=0, num_ranks=1, columns=columns)
    proximals = None
    if moved is not None:
        now = learner.passes.logprobs(learner.parallel_chunks, micro_batches, batch.temperature)
        proximals = [each + moved(micro.targets) for each, micro in zip(now, micro_batches, strict=True)]
    metrics = learner.accumulate(MiniBatch(micro_batches, batch.temperature, proximals=proximals))
    return metrics, dict(export_weights(learner.model, lambda parameter: parameter.main_grad.clone()))


def worst_difference(got: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    """Largest difference of any tensor, relative to the tensor's largest value."""
    assert got.keys() == wanted.keys()
    return max(((got[name] - wanted[name]).abs().max() / wanted[name].abs().max()).item() for name in wanted)
