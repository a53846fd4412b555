"""A policy in this process, with the weights of a folder."""

from pathlib import Path

import torch

from asyncrl.model.folder import check_model_folder
from asyncrl.trainer.network.convert import load_weights
from asyncrl.trainer.network.export import open_weights
from asyncrl.trainer.network.model import PolicyModel, build_model


def load_policy(folder: Path) -> PolicyModel:
    """In float32. Needs the process group of this process's ranks."""
    model = build_model(check_model_folder(folder), torch.float32)
    load_weights(model, open_weights(folder))
    return model
