"""Learners on the weights of a model folder, in this process's group."""

from pathlib import Path

import torch
from fakes.recipes import make_recipe
from torch import Tensor

from asyncrl.model.folder import check_model_folder
from asyncrl.trainer.network.convert import export_weights
from asyncrl.trainer.network.model import Policy, PolicyModel
from asyncrl.trainer.parts.table import build_learner
from asyncrl.trainer.step.learner import Learner


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
