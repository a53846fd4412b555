"""The frozen reference: a second copy of the base model, without gradients, optimizer or updates."""

import torch
from megatron.core.transformer.module import Float16Module

from asyncrl.model.folder import ModelShape
from asyncrl.model.layout import Layout
from asyncrl.model.source import model_folder
from asyncrl.model.unsampled import Unsampled
from asyncrl.recipe import Model
from asyncrl.trainer.network.convert import load_weights
from asyncrl.trainer.network.export import open_weights
from asyncrl.trainer.network.model import DTYPES, build_policy


def load_reference(
    shape: ModelShape, section: Model, layout: Layout, unsampled: Unsampled
) -> list[torch.nn.Module]:
    """This rank's chunks of the model at `model.path`, as it was before any training."""
    policy = build_policy(shape, DTYPES[section.dtype], layout, unsampled=unsampled)
    load_weights(policy, open_weights(model_folder(section)))
    policy.requires_grad_(False)
    if section.dtype == "bfloat16":
        return [Float16Module(chunk.config, chunk) for chunk in policy]
    return list(policy)
