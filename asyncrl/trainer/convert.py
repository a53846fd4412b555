"""Names and layouts: Hugging Face <-> Megatron-core, dense decoders, both directions bit-equal.

Megatron interleaves q, k, v by key-value group in one matrix and stacks gate over up; everything else only
changes its name. The tables here are all there is to a new dense architecture.
"""

import re
from collections.abc import Callable, Iterator

import torch
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from asyncrl.trainer.model import PolicyModel

OUTER = {
    "embedding.word_embeddings.weight": ("model.embed_tokens.weight",),
    "decoder.final_layernorm.weight": ("model.norm.weight",),
    "output_layer.weight": ("lm_head.weight",),
}
LAYER = {
    "input_layernorm.weight": ("input_layernorm.weight",),
    "pre_mlp_layernorm.weight": ("post_attention_layernorm.weight",),
    "self_attention.q_layernorm.weight": ("self_attn.q_norm.weight",),
    "self_attention.k_layernorm.weight": ("self_attn.k_norm.weight",),
    "self_attention.linear_qkv.weight": tuple(f"self_attn.{x}_proj.weight" for x in "qkv"),
    "self_attention.linear_qkv.bias": tuple(f"self_attn.{x}_proj.bias" for x in "qkv"),
    "self_attention.linear_proj.weight": ("self_attn.o_proj.weight",),
    "mlp.linear_fc1.weight": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
    "mlp.linear_fc2.weight": ("mlp.down_proj.weight",),
}


@torch.no_grad()
def load_weights(model: PolicyModel, fetch: Callable[[str], Tensor]) -> None:
    """Fills `model` in place; `fetch` gives one tensor by its Hugging Face name."""
    for name, parameter in model.named_parameters():
        parts = [fetch(part).to(parameter.dtype) for part in huggingface_names(name)]
        parameter.copy_(_merge(model.config, parts))


@torch.no_grad()
def export_weights(
    model: PolicyModel, read: Callable[[torch.nn.Parameter], Tensor] = lambda parameter: parameter.data
) -> Iterator[tuple[str, Tensor]]:
    """(Hugging Face name, contiguous tensor) of everything in `model`; `read` may pick gradients instead."""
    for name, parameter in model.named_parameters():
        names = huggingface_names(name)
        yield from zip(names, _split(model.config, read(parameter), len(names)), strict=True)


def huggingface_names(name: str) -> tuple[str, ...]:
    """The Hugging Face tensors that make up Megatron's parameter `name`."""
    if name in OUTER:
        return OUTER[name]
    match = re.fullmatch(r"decoder\.layers\.(\d+)\.(.*)", name)
    assert match is not None, f"no Hugging Face name for {name}"
    return tuple(f"model.layers.{match[1]}.{part}" for part in LAYER[match[2]])


def _merge(config: TransformerConfig, parts: list[Tensor]) -> Tensor:
    if len(parts) == 3:
        groups = (part.unflatten(0, (config.num_query_groups, -1)) for part in parts)
        return torch.cat(list(groups), dim=1).flatten(0, 1)
    return torch.cat(parts)


def _split(config: TransformerConfig, tensor: Tensor, num_parts: int) -> list[Tensor]:
    if num_parts == 3:
        size = config.kv_channels
        heads = config.num_attention_heads // config.num_query_groups
        groups = tensor.unflatten(0, (config.num_query_groups, -1)).split([heads * size, size, size], dim=1)
        return [part.flatten(0, 1).contiguous() for part in groups]
    return [part.contiguous() for part in tensor.chunk(num_parts)]
