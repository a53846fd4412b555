"""A policy in this process, with the weights of a folder."""

from pathlib import Path

import torch

from asyncrl.model.folder import check_model_folder
from asyncrl.model.shape import ModelShape
from asyncrl.trainer.network.convert import load_weights
from asyncrl.trainer.network.export import open_weights
from asyncrl.trainer.network.model import PolicyModel, build_policy


def build_model(shape: ModelShape, dtype: torch.dtype) -> PolicyModel:
    """A whole model of `shape` in one process, with random weights."""
    model: PolicyModel
    (model,) = build_policy(shape, dtype)
    return model


def load_policy(folder: Path) -> PolicyModel:
    """In float32. Needs the process group of this process's ranks."""
    model = build_model(check_model_folder(folder), torch.float32)
    load_weights(model, open_weights(folder))
    return model
