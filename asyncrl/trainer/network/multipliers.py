"""Multipliers of a model's embedding and of its residual branches (Granite), as transformers applies them.

They are not part of a weight: what is trained and published are the tensors of the folder.
"""

from collections.abc import Callable

import torch
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.transformer_layer import TransformerLayerSubmodules
from torch import Tensor

Add = Callable[[tuple[Tensor, Tensor | None], Tensor, float], Tensor]
"""((output of a branch, bias), residual, dropout) -> their sum."""


def multiply_embedding(model: GPTModel, multiplier: float, *, is_rounded: bool = False) -> None:
    """Multiplies what the embedding of the first stage gives; by the multiplier as the weights' type has it,
    if `is_rounded`."""

    def multiplied(module: torch.nn.Module, inputs: tuple[object, ...], hidden: Tensor) -> Tensor:
        factor = torch.tensor(multiplier, dtype=hidden.dtype).item() if is_rounded else multiplier
        return hidden * factor

    model.embedding.register_forward_hook(multiplied)


def multiply_branches(layer: TransformerLayerSubmodules, multiplier: float) -> None:
    """Multiplies what attention and the feed-forward network give, before each is added to its residual."""

    def get_add(training: bool, fused: bool) -> Add:
        def add(branch: tuple[Tensor, Tensor | None], residual: Tensor, dropout: float) -> Tensor:
            output, bias = branch
            assert bias is None and dropout == 0.0
            return residual + output * multiplier

        return add

    layer.self_attn_bda = layer.mlp_bda = get_add
