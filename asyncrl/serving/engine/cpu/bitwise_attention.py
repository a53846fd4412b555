"""Attention over SGLang's cache by the kernel that trainers share bit for bit (serving/kernels).

Shapes: B requests, L queries and K keys of each, padding included; H heads, G of them key-value, D head size.
"""

from dataclasses import dataclass

import torch

from asyncrl.serving.engine.cpu.attention import BUCKET_KEYS, BatchedAttention, even_share, plan_buckets
from asyncrl.serving.kernels.attention import Attention


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
