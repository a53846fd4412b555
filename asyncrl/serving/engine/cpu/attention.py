"""Attention for SGLang on a CPU: whole batches instead of one request after the other.

SGLang's own CPU fallback (torch_native) calls the kernel once per request and layer: two thirds of the time
of a small model. Here requests of similar length are padded to one length and computed by one call;
which cache slots they read, and their masks, are worked out once per forward pass for all layers.
Sliding windows are masks, soft caps and sinks a formula of their own (torch_native ignores them).
Cross-attention, encoders and pools of which sliding layers keep less are left to torch_native.

B requests, Q and K query and key positions after padding, G heads of keys and values, D head size.
"""

from dataclasses import dataclass

import torch
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.mem_cache.memory_pool import KVWriteLoc, MHATokenToKVPool
from torch.nn.functional import scaled_dot_product_attention

from asyncrl.serving.engine.cpu.decode_attention import attend, heads_at_once

BUCKET_KEYS = 8192
"""Most key positions that one call reads, padding included: more would not fit the processor's cache."""
DECODE_KEYS = 4096
"""The same for one query per head in bfloat16, whose products read the keys twice."""
BUCKET_SCORES = 2**21
"""Most (query, key) pairs of one call with several requests: their mask takes 4 bytes each."""
SIMILAR = 1.25
"""Requests go into one bucket while the longest is at most this much longer than the shortest..."""
SMALL_SCORES = 2048
"""...or while the bucket has no more (query, key) pairs than this: another call costs more than padding."""
MANY_REQUESTS = 12
"""A bucket of fewer costs torch's kernel less than decode_attention.py."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Requests that are computed together, in the order of `rows`."""

    slots: torch.Tensor
    """[B * K] int64, the cache slot of each key; padding reads slot 0, which SGLang never writes."""
    mask: torch.Tensor
    """[B, 1, Q or 1, K] 0 where a query may see a key, else -inf."""
    queried: torch.Tensor
    """[B, Q or 1] int64, the position of each query."""
    rows: torch.Tensor | None
    """Decode: [B] places of the requests, None for all in order. Extend: [B * Q] places of the tokens."""
    kept: torch.Tensor | None = None
    """Extend: [tokens] places in [B * Q] that are no padding."""


def plan_buckets(lengths: list[int], extents: list[int], most_keys: int = BUCKET_KEYS) -> list[list[int]]:
    """Places of requests with similar lengths (keys) and extents (queries), longest extent first."""
    order = sorted(range(len(lengths)), key=lambda place: (extents[place], lengths[place]), reverse=True)
    buckets: list[list[int]] = []
    extent = longest = shortest = 0
    for place in order:
        length = lengths[place]
        keys = max(longest, length) * (len(buckets[-1]) + 1) if buckets else 0
        is_similar = (
            max(longest, length) <= SIMILAR * min(shortest, length) and extent <= SIMILAR * extents[place]
        )
        is_bounded = keys <= most_keys and keys * extent <= BUCKET_SCORES
        if buckets and is_bounded and (is_similar or keys * extent <= SMALL_SCORES):
            buckets[-1].append(place)
            longest, shortest = max(longest, length), min(shortest, length)
        else:
            buckets.append([place])
            extent, longest, shortest = extents[place], length, length
    return buckets


def even_share(lengths: list[int], most_keys: int) -> int:
    """Most keys of a bucket, so that as few as `most_keys` allows are about equally full.

    Without it the last bucket holds what is left over: too few requests to be computed at once. A bucket may
    exceed `most_keys` by the request that fills it.
    """
    num_buckets = -(-sum(lengths) // most_keys)
    return -(-sum(lengths) // num_buckets) + max(lengths) - 1


class BatchedAttention(TorchNativeAttnBackend):
    """One scaled_dot_product_attention call per bucket and layer."""

    def __init__(self, model_runner):
        super().__init__(model_runner)
        self._dtype = model_runner.dtype
        self._has_plain_pool = False
        self._buckets: list[Bucket] = []
        self._workspaces: dict[tuple, torch.Tensor] = {}
        self._spread: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        """Place of a bucket -> what `_spread_over_heads` made for it in this forward pass."""
        self._windowed: dict[tuple[int, int], torch.Tensor] = {}
        """(place of a bucket, window) -> its mask in this forward pass."""

    def get_cpu_graph_seq_len_fill_value(self):
        """Length of the requests that pad a batch where groups of ranks attend to different ones."""
        return 1

    def init_forward_metadata(self, forward_batch):
        super().init_forward_metadata(forward_batch)
        self._spread.clear()
        self._windowed.clear()
        self._has_plain_pool = _is_plain_pool(self.token_to_kv_pool)
        mode = forward_batch.forward_mode
        if forward_batch.encoder_lens is not None or mode.is_idle():
            self._buckets = []
        elif mode.is_decode():
            self._buckets = self._plan_decode(forward_batch)
        else:
            self._buckets = self._plan_extend(forward_batch)

    def forward_decode(self, q, k, v, layer, forward_batch, save_kv_cache=True, sinks=None, **kwargs):
        if not self._is_batched(layer, q):
            assert sinks is None, "torch_native knows no sinks"
            return super().forward_decode(q, k, v, layer, forward_batch, save_kv_cache)
        self._store(layer, forward_batch, k, v, save_kv_cache)
        kv_heads, size = layer.tp_k_head_num, layer.qk_head_dim
        queries = q.reshape(-1, kv_heads, layer.tp_q_head_num // kv_heads, size)
        output = q.new_empty(queries.shape[0], layer.tp_q_head_num * layer.v_head_dim)
        for place, bucket in enumerate(self._buckets):
            mine = queries if bucket.rows is None else queries.index_select(0, bucket.rows)
            # The heads that share a KV head are its queries: no copy of keys for grouped-query attention.
            if sinks is None and self._is_at_once(layer, bucket):
                attended = self._decode_at_once(mine, layer, place)
            else:
                keys, values = self._gather(layer, bucket)
                mask = self._layer_mask(layer, place)
                of_queries = None if sinks is None else sinks.view(kv_heads, -1, 1)
                attended = _attend(mine, keys, values, mask, layer, of_queries)
                attended = attended.reshape(mine.shape[0], -1)
            if bucket.rows is None:
                return attended
            output.index_copy_(0, bucket.rows, attended)
        return output

    def forward_extend(self, q, k, v, layer, forward_batch, save_kv_cache=True, sinks=None, **kwargs):
        if not self._is_batched(layer, q):
            assert sinks is None, "torch_native knows no sinks"
            return super().forward_extend(q, k, v, layer, forward_batch, save_kv_cache)
        self._store(layer, forward_batch, k, v, save_kv_cache)
        heads, size = layer.tp_q_head_num, layer.qk_head_dim
        of_queries = None if sinks is None else sinks.view(heads, 1, 1)
        queries = q.reshape(-1, heads * size)
        output = q.new_empty(queries.shape[0], heads * layer.v_head_dim)
        for place, bucket in enumerate(self._buckets):
            num_requests, _, extent, _ = bucket.mask.shape
            mine = queries.index_select(0, bucket.rows).view(num_requests, extent, heads, size)
            keys, values = self._gather(layer, bucket)
            mask = self._layer_mask(layer, place)
            attended = _attend(mine.transpose(1, 2), keys, values, mask, layer, of_queries)
            attended = attended.transpose(1, 2).reshape(num_requests * extent, -1)
            tokens = bucket.rows.index_select(0, bucket.kept)
            output.index_copy_(0, tokens, attended.index_select(0, bucket.kept))
        return output

    def _layer_mask(self, layer, place):
        """[B, 1, Q or 1, K], ending at the window of the layer."""
        bucket = self._buckets[place]
        if not _has_window(layer):
            return bucket.mask
        key = (place, layer.sliding_window_size)
        if key not in self._windowed:
            # SGLang's size does not count the token itself.
            first = bucket.queried - layer.sliding_window_size
            is_near = torch.arange(bucket.mask.shape[-1]) >= first[:, :, None]
            self._windowed[key] = bucket.mask.masked_fill(~is_near[:, None], float("-inf"))
        return self._windowed[key]

    def _is_at_once(self, layer, bucket):
        if _has_window(layer) or layer.logit_cap > 0:
            return False
        cache, _ = self._caches(layer)
        return self._dtype == cache.dtype == torch.bfloat16 and bucket.mask.shape[0] >= MANY_REQUESTS

    def _decode_at_once(self, queries, layer, place):
        """[B, G, queries of a head, D] -> [B, heads * D]."""
        num_requests, num_heads, num_queries, size = queries.shape
        together = heads_at_once(num_heads)
        rows, mask = self._spread_over_heads(place, num_heads // together)
        keys, values = (
            self._select(kind, cache.view(-1, together * cache.shape[2]), rows).view(*mask.shape[::2], -1)
            for kind, cache in zip(("key", "value"), self._caches(layer), strict=True)
        )
        mine = queries.reshape(-1, together, num_queries, size)
        return attend(mine, keys, values, mask, layer.scaling).reshape(num_requests, -1)

    def _spread_over_heads(self, place, num_parts):
        """The bucket's slots and mask for heads in `num_parts` groups, the same for all layers.

        [B * parts * K] rows of a cache [slots * parts, heads of a group * D], and [B * parts, 1, K] float32.
        """
        spread = self._spread.get(place)
        if spread is None:
            bucket = self._buckets[place]
            mask = bucket.mask.float().view(bucket.mask.shape[0], 1, -1).repeat_interleave(num_parts, 0)
            slots = bucket.slots.view(bucket.mask.shape[0], 1, -1)
            rows = (slots * num_parts + torch.arange(num_parts)[:, None]).view(-1)
            spread = self._spread[place] = rows, mask
        return spread

    def _is_batched(self, layer, q):
        has_pool = not (_has_window(layer) and self.use_sliding_window_kv_pool)
        is_causal = not layer.is_cross_attention and layer.attn_type != AttentionType.ENCODER_ONLY
        return bool(self._buckets) and is_causal and has_pool and q.dtype == self._dtype

    def _caches(self, layer):
        """Keys and values [slots, G, D] of a layer."""
        pool = self.token_to_kv_pool
        if self._has_plain_pool:
            place = layer.layer_id - pool.start_layer
            return pool.k_buffer[place], pool.v_buffer[place]
        return pool.get_key_buffer(layer.layer_id), pool.get_value_buffer(layer.layer_id)

    def _store(self, layer, forward_batch, k, v, save_kv_cache):
        if not save_kv_cache or k is None or v is None:
            return
        if self._has_plain_pool and k.dtype == self.token_to_kv_pool.dtype:
            # What the pool does with them, without its questions to each layer.
            for cache, new in zip(self._caches(layer), (k, v), strict=True):
                cache.index_copy_(0, forward_batch.out_cache_loc, new.view(-1, *cache.shape[1:]))
        else:
            slots = KVWriteLoc(forward_batch.out_cache_loc, self.swa_out_cache_loc)
            self.token_to_kv_pool.set_kv_buffer(layer, slots, k, v)

    def _gather(self, layer, bucket):
        """The bucket's keys and values, [B, G, K, D] each, valid until the next call."""
        shape = (bucket.mask.shape[0], bucket.mask.shape[-1])
        gathered = []
        for kind, cache in zip(("key", "value"), self._caches(layer), strict=True):
            out = self._select(kind, cache.view(cache.shape[0], -1), bucket.slots)
            heads = out.view(*shape, cache.shape[1], cache.shape[2]).transpose(1, 2)
            gathered.append(heads.to(self._dtype))
        return gathered

    def _select(self, kind, cache, rows):
        """The selected rows of a cache [any, row], valid until the next call for `kind`."""
        out = self._workspace(kind, rows.shape[0], cache)
        return torch.index_select(cache, 0, rows, out=out)

    def _workspace(self, kind, length, like):
        # Reused because fresh megabytes cost more in page faults than filling them.
        key = (kind, like.shape[1], like.dtype)
        held = self._workspaces.get(key)
        if held is None or held.shape[0] < length:
            # Twice as large: keys grow at each step, and a block that is just too small stays in the heap.
            longest = max(length, BUCKET_KEYS, 0 if held is None else 2 * held.shape[0])
            held = self._workspaces[key] = like.new_empty(longest, like.shape[1])
        return held[:length]

    def _plan_decode(self, forward_batch):
        lengths = forward_batch.seq_lens.tolist()
        most_keys = DECODE_KEYS if self._dtype == torch.bfloat16 else BUCKET_KEYS
        plans = plan_buckets(lengths, [1] * len(lengths), even_share(lengths, most_keys))
        is_whole = len(plans) == 1
        buckets = []
        for plan in plans:
            rows = torch.arange(len(lengths)) if is_whole else torch.tensor(plan)
            ends = forward_batch.seq_lens.index_select(0, rows)
            slots, positions = self._slots(forward_batch, rows, ends, max(lengths[place] for place in plan))
            mask = self._mask(positions < ends[:, None])[:, None, None, :]
            buckets.append(Bucket(slots, mask, ends[:, None] - 1, None if is_whole else rows))
        return buckets

    def _plan_extend(self, forward_batch):
        extents = forward_batch.extend_seq_lens.tolist()
        lengths = forward_batch.seq_lens.tolist()
        starts = forward_batch.extend_seq_lens.cumsum(0) - forward_batch.extend_seq_lens
        buckets = []
        for plan in plan_buckets(lengths, extents):
            rows = torch.tensor(plan)
            ends = forward_batch.seq_lens.index_select(0, rows)
            slots, positions = self._slots(forward_batch, rows, ends, max(lengths[place] for place in plan))
            steps = torch.arange(extents[plan[0]])
            is_token = steps < forward_batch.extend_seq_lens.index_select(0, rows)[:, None]
            tokens = torch.where(is_token, starts.index_select(0, rows)[:, None] + steps, 0)
            queried = forward_batch.extend_prefix_lens.index_select(0, rows)[:, None] + steps
            mask = self._mask(positions <= queried[:, :, None])[:, None]
            kept = is_token.view(-1).nonzero().view(-1)
            buckets.append(Bucket(slots, mask, queried, tokens.view(-1), kept))
        return buckets

    def _slots(self, forward_batch, rows, ends, longest):
        """Cache slots [B * K] of the requests at `rows`, and key positions [K]."""
        positions = torch.arange(longest)
        pool_rows = forward_batch.req_pool_indices.index_select(0, rows)
        slots = self.req_to_token_pool.req_to_token[pool_rows, :longest].long()
        return torch.where(positions < ends[:, None], slots, 0).view(-1), positions

    def _mask(self, is_seen):
        return torch.zeros(is_seen.shape, dtype=self._dtype).masked_fill_(~is_seen, float("-inf"))


def _has_window(layer):
    return layer.sliding_window_size is not None and layer.sliding_window_size > -1


def _attend(queries, keys, values, mask, layer, sinks=None):
    """[B, heads, Q, D], [B, G, K, D] twice, [B, 1, Q or 1, K] -> [B, heads, Q, D].

    Scores are capped where `layer` has a cap: c tanh(score / c). `sinks` [heads, Q or 1, 1] are logits in
    the denominators, without a value.
    """
    is_grouped = queries.shape[1] != keys.shape[1]
    if sinks is None and not layer.logit_cap > 0:
        return scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, scale=layer.scaling, enable_gqa=is_grouped
        )
    if is_grouped:
        copies = queries.shape[1] // keys.shape[1]
        keys, values = (each.repeat_interleave(copies, dim=1) for each in (keys, values))
    products = queries.float() @ keys.float().mT
    if layer.logit_cap > 0:
        scores = torch.tanh(products * (layer.scaling / layer.logit_cap)) * layer.logit_cap + mask
    else:
        scores = products * layer.scaling + mask
    if sinks is not None:
        scores = torch.cat([scores, sinks.float().expand(*scores.shape[:-1], 1)], -1)
    weights = scores.softmax(-1)[..., : keys.shape[2]]
    return weights.to(values.dtype) @ values


def _is_plain_pool(pool):
    """Whether each layer of SGLang's pool is one tensor of keys and one of values, [slots, G, D]."""
    return (
        type(pool) is MHATokenToKVPool
        and pool.store_dtype == pool.dtype
        and not pool.is_quantized_kv_cache
        and pool.kv_cache_layout == "nhd"
        and pool.layer_transfer_counter is None
    )
