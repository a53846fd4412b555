"""Attention and plain decoders by the kernels that trainers share bit for bit (serving/kernels)."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from sglang.srt.runtime_context import get_server_args
from torch import Tensor

from asyncrl.model.folder import read_shape
from asyncrl.model.supported import BITWISE_VARIABLE
from asyncrl.serving.engine.cpu.attention import BUCKET_KEYS, BatchedAttention, even_share, plan_buckets
from asyncrl.serving.engine.cpu.plain_decoder import Layer, PlainDecoder, is_plain_model
from asyncrl.serving.kernels import bitwise as kernels
from asyncrl.serving.kernels.bitwise import Attention


# Shapes: B requests, L queries and K keys of each, padding included; H heads, G of them key-value, D head
# size.
@dataclass(frozen=True, slots=True)
class BitwiseBucket:
    """Requests that are computed together."""

    attention: Attention
    slots: torch.Tensor
    """[B * K] int64, the cache slot of each key; padding reads the request's first."""
    tokens: torch.Tensor
    """[B * L] places of the queries in the pass; padding repeats one."""
    kept: torch.Tensor
    """Places in [B * L] that are no padding."""


class BitwiseAttention(BatchedAttention):
    """Raises where it cannot compute a pass: no other attention gives the same bits."""

    def __init__(self, model_runner):
        super().__init__(model_runner)
        attention = model_runner.model.model.layers[0].self_attn.attn
        self._heads = attention.tp_q_head_num, attention.tp_k_head_num

    def forward_decode(self, q, k, v, layer, forward_batch, save_kv_cache=True, **kwargs):
        return self._forward(q, k, v, layer, forward_batch, save_kv_cache)

    def forward_extend(self, q, k, v, layer, forward_batch, save_kv_cache=True, **kwargs):
        return self._forward(q, k, v, layer, forward_batch, save_kv_cache)

    def _forward(self, q, k, v, layer, forward_batch, save_kv_cache):
        if not self._is_batched(layer, q):
            raise NotImplementedError("this attention has no kernel that a trainer shares bit for bit")
        self._store(layer, forward_batch, k, v, save_kv_cache)
        queries = q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim)
        output = torch.empty_like(queries)
        for bucket in self._buckets:
            num_keys = bucket.attention.num_keys
            num_requests = len(bucket.slots) // num_keys
            mine = queries.index_select(0, bucket.tokens).unflatten(0, (num_requests, -1))
            keys, values = (
                self._select(kind, cache.view(cache.shape[0], -1), bucket.slots)
                .view(num_requests, num_keys, *cache.shape[1:])
                .to(self._dtype)
                for kind, cache in zip(("key", "value"), self._caches(layer), strict=True)
            )
            attended = bucket.attention(mine, keys, values, layer.scaling).flatten(0, 1)
            tokens = bucket.tokens.index_select(0, bucket.kept)
            output.index_copy_(0, tokens, attended.index_select(0, bucket.kept))
        return output.flatten(1)

    def _plan_decode(self, forward_batch):
        lengths = forward_batch.seq_lens.tolist()
        plans = plan_buckets(lengths, [1] * len(lengths), even_share(lengths, BUCKET_KEYS))
        return [self._plan(forward_batch, plan, torch.tensor(plan)[:, None]) for plan in plans]

    def _plan_extend(self, forward_batch):
        extents = forward_batch.extend_seq_lens.tolist()
        starts = forward_batch.extend_seq_lens.cumsum(0) - forward_batch.extend_seq_lens
        buckets = []
        for plan in plan_buckets(forward_batch.seq_lens.tolist(), extents):
            own = torch.tensor([extents[place] for place in plan])[:, None]
            steps = torch.minimum(torch.arange(extents[plan[0]]).expand(len(plan), -1), own - 1)
            buckets.append(self._plan(forward_batch, plan, starts[torch.tensor(plan)][:, None] + steps))
        return buckets

    def _plan(self, forward_batch, plan, tokens):
        """The requests at `plan`, whose queries are `tokens` [B, L]; the last of each repeats as padding."""
        rows = torch.tensor(plan)
        ends = forward_batch.seq_lens.index_select(0, rows)[:, None]
        seen = ends - (tokens[:, -1:] - tokens)
        attention = Attention(seen, *self._heads)
        positions = torch.arange(attention.num_keys)
        pool_rows = forward_batch.req_pool_indices.index_select(0, rows)
        table = self.req_to_token_pool.req_to_token
        # The last block of keys may reach past the end of the table.
        slots = table[pool_rows][:, positions.clamp(max=table.shape[1] - 1)].long()
        slots = torch.where(positions < ends, slots, slots[:, :1])
        is_kept = torch.ones_like(tokens, dtype=torch.bool)
        is_kept[:, 1:] = tokens[:, 1:] != tokens[:, :-1]
        kept = is_kept.view(-1).nonzero().view(-1)
        return BitwiseBucket(attention, slots.view(-1), tokens.reshape(-1), kept)


# A model or a pass that has more than the plain parts is refused: SGLang's own layers give other bits.
#
# Shapes: N tokens, R of them and padding.
class BitwiseDecoder(PlainDecoder):
    """Replaces `forward` of a model's decoder; the attention is that of `backend`."""

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
