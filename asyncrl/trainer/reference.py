"""The frozen reference: the base model once more, without gradients, optimizer or updates."""

from pathlib import Path

import torch
from megatron.core.transformer.module import Float16Module

from asyncrl.recipe import Model
from asyncrl.trainer.convert import load_weights
from asyncrl.trainer.export import open_weights
from asyncrl.trainer.folder import ModelShape
from asyncrl.trainer.model import DTYPES, build_model


def load_reference(shape: ModelShape, section: Model) -> torch.nn.Module:
    """The model at `model.path`, as it was before any training."""
    model = build_model(shape, DTYPES[section.dtype])
    load_weights(model, open_weights(Path(section.path)))
    model.requires_grad_(False)
    return Float16Module(model.config, model) if section.dtype == "bfloat16" else model
