"""The model of a critic: the policy's layers with a value head, of which attention may stay as it is.

Shapes: T response tokens of one micro-batch, H hidden size.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from torch import Tensor

from asyncrl.errors import InputError
from asyncrl.model.layout import Layout
from asyncrl.model.shape import ModelShape
from asyncrl.model.source import model_folder
from asyncrl.recipe import Recipe
from asyncrl.trainer.network.convert import load_weights
from asyncrl.trainer.network.export import open_weights
from asyncrl.trainer.network.model import DTYPES, Policy, build_policy, device
from asyncrl.trainer.packing.attention import pick_rows
from asyncrl.trainer.packing.batch import MicroBatch
from asyncrl.trainer.packing.context_parallel import fill_in, own_predicting, own_tokens


class ValueHead(torch.nn.Linear):
    """[T, H] -> [T] float32. Every tensor rank holds all of it."""

    def __init__(self, hidden_size: int, bounds: Sequence[float] | None = None) -> None:
        super().__init__(hidden_size, 1, bias=False)
        self._bounds = bounds
        # At first every value is 0, or the middle of its range, and the first gradient moves only the head.
        torch.nn.init.zeros_(self.weight)

    def forward(self, hidden: Tensor) -> Tensor:
        values = F.linear(hidden.float(), self.weight.float()).squeeze(1)
        if self._bounds is None:
            return values
        low, high = self._bounds
        return low + (high - low) * values.sigmoid()


class CriticModel(GPTModel):
    """One chunk of the critic's layers; the last one gives values."""

    shape: ModelShape

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        if self.post_process:
            # `build_critic` puts the value head in its place, which Megatron then describes in checkpoints.
            self.output_layer: Any = None

    def forward(self, micro: MicroBatch, temperature: float) -> Tensor:
        """Hidden states [C, 1, H] for the next stage; from the last one values [T], of no temperature."""
        hidden: Tensor = super().forward(
            own_tokens(micro.tokens)[None], None, None, packed_seq_params=micro.sequences
        )
        if not self.post_process:
            return hidden
        if self.config.sequence_parallel:
            # Every rank computes every value and its whole gradient: nothing to sum over tensor ranks.
            hidden = gather_from_sequence_parallel_region(hidden, tensor_parallel_output_grad=False)
        own, predicting = own_predicting(micro.predicting, len(hidden))
        values: Tensor = self.output_layer(pick_rows(hidden.squeeze(1), predicting))
        return values if own is None else fill_in(values[None], own, len(micro.targets))[0]

    def _postprocess(self, hidden_states: Tensor, **_: Any) -> Tensor:
        return hidden_states


def build_critic(shape: ModelShape, recipe: Recipe, layout: Layout) -> Policy:
    """This rank's chunks: the weights at `critic.path`, else `model.path`, under a value head of zeros."""
    # Its output layer is no embedding.
    shape, dtype = dataclasses.replace(shape, is_tied=False), DTYPES[recipe.model.dtype]
    model = build_policy(shape, dtype, layout, recompute=recipe.trainer.recompute, kind=CriticModel)
    load_weights(model, open_weights(model_folder(recipe.critic_model())))
    for chunk in model:
        if chunk.post_process:
            head = ValueHead(shape.hidden_size, recipe.critic.value_range)
            chunk.output_layer = head.to(device=device(), dtype=dtype)
    if recipe.critic.frozen == "attention":
        freeze_attention(model)
    return model


def freeze_attention(model: Policy) -> None:
    """Before the optimizer is made: attention of every kind (softmax, latent, linear) keeps its weights."""
    named = (each for chunk in model for each in chunk.named_parameters())
    # Transformer Engine keeps the norm before attention in its first matrix.
    attention = [p for n, p in named if ".self_attention." in n and not n.endswith("layer_norm_weight")]
    if not attention:
        raise InputError(
            "critic.frozen is attention, but no parameter of this model is of attention. Set it to none."
        )
    for parameter in attention:
        parameter.requires_grad_(False)
