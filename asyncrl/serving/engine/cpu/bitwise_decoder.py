"""The forward pass of plain Llama and Qwen models by the kernels that trainers share bit for bit.

A model or a pass that has more than the plain parts is refused: SGLang's own layers give other bits.

Shapes: N tokens, R of them and padding.
"""

from collections.abc import Iterator
from pathlib import Path

import torch
from sglang.srt.runtime_context import get_server_args
from torch import Tensor

from asyncrl.model.bitwise import BITWISE_VARIABLE
from asyncrl.model.folder import read_shape
from asyncrl.serving.engine.cpu.plain_decoder import Layer, PlainDecoder, is_plain_model
from asyncrl.serving.kernels import rows as kernels


class BitwiseDecoder(PlainDecoder):
    """Replaces `forward` of a model's decoder; the attention is that of `backend` (bitwise_attention.py)."""

    def __init__(self, decoder, backend) -> None:
        super().__init__(decoder, backend)
        shape = read_shape(Path(get_server_args().model_path))
        self._frequencies = kernels.inverse_frequencies(
            shape.rope_theta, shape.head_size, shape.rope_scaling_factor
        )

    def __call__(self, input_ids, positions, forward_batch, input_embeds=None, pp_proxy_tensors=None):
        if not self._is_plain_pass(positions, forward_batch, input_embeds, pp_proxy_tensors):
            raise NotImplementedError(f"{BITWISE_VARIABLE} is set: prefills and decoding steps only")
        mode = forward_batch.forward_mode
        over_cache = self._backend.forward_decode if mode.is_decode() else self._backend.forward_extend
        turns = kernels.turns(kernels.padded(positions), self._frequencies)
        total = kernels.padded(self._decoder.embed_tokens(input_ids))
        for plain, layer in self._both_layers():
            queries, keys, values = _heads(plain, layer.self_attn.qkv_proj, total, turns)
            num_tokens = len(input_ids)
            attended = over_cache(
                *(each[:num_tokens] for each in (queries, keys, values)), plain.attention, forward_batch
            )
            total = total + _product(layer.self_attn.o_proj, kernels.padded(attended))
            gate, up = _product(layer.mlp.gate_up_proj, _norm(plain.ffn_norm, total)).chunk(2, -1)
            total = total + _product(layer.mlp.down_proj, kernels.silu(gate) * up)
        norm = self._decoder.norm
        return kernels.norm(total, norm.weight, norm.variance_epsilon)[: len(input_ids)]

    def _both_layers(self) -> Iterator[tuple[Layer, torch.nn.Module]]:
        layers = self._plain_layers()
        if layers is None:
            raise NotImplementedError(f"{BITWISE_VARIABLE} is set, but this model has more than plain layers")
        return zip(layers, self._decoder.layers, strict=True)


def check(model) -> None:
    """Raises NotImplementedError for a model that is not plain."""
    if not is_plain_model(model):
        raise NotImplementedError(
            f"{BITWISE_VARIABLE} is set, but {type(model).__name__} on these ranks has no kernels that a "
            f"trainer shares. Start the server on one rank with a dense Llama or Qwen, or without it."
        )


def install(model, backend) -> None:
    """Replaces the forward passes of a model that `check` lets pass."""
    model.model.forward = BitwiseDecoder(model.model, backend)


def _heads(plain: Layer, linear, total: Tensor, turns) -> tuple[Tensor, Tensor, Tensor]:
    """[R, hidden] -> queries, keys and values [R, any, head size]."""
    attention, size = plain.attention, plain.attention.qk_head_dim
    counts = (attention.tp_q_head_num, attention.tp_k_head_num, attention.tp_k_head_num)
    heads = _product(linear, _norm(plain.input_norm, total)).view(len(total), -1, size)
    queries, keys, values = heads.split(counts, 1)
    if plain.query_norm is not None:
        queries, keys = _norm(plain.query_norm, queries), _norm(plain.key_norm, keys)
    return kernels.rotate(queries, *turns), kernels.rotate(keys, *turns), values


def _product(linear, rows: Tensor) -> Tensor:
    return kernels.linear(rows, linear.weight, linear.bias)


def _norm(norm, rows: Tensor) -> Tensor:
    return kernels.norm(rows, norm.weight, norm.epsilon)
