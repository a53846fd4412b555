"""Causal attention over packed sequences for Megatron's local spec, without a loop over sequences.

Linear layers see packed tokens; only here are sequences of similar length gathered into padded buckets, one
`scaled_dot_product_attention` each. Padding stands behind its sequence, so causality alone masks it.

Shapes: P packed tokens, B sequences of a bucket, L its longest, H heads, G of them key-value, D head size.
"""

from dataclasses import dataclass

import numpy as np
import torch
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

FIXED_COST = 16_000
"""What one more attention call costs, in units of a padded score (B x L x L): about 0.2 ms."""
LINEAR_COST = 64
"""What one padded token costs to gather and scatter, in the same units."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Neighbouring sequences of a pack, padded to the longest."""

    begin: int
    end: int
    """Packed tokens [begin, end)."""
    num_sequences: int
    length: int
    padded: Tensor
    """[B * L] the packed token (from `begin`) at each padded place; padding repeats the last one."""
    packed: Tensor
    """[end - begin] the padded place of each packed token: the inverse of `padded`."""


@dataclass
class PackedSequences(PackedSeqParams):
    """Megatron's description of a pack ("thd"), with the buckets that our attention wants."""

    buckets: tuple[Bucket, ...] = ()


def pack_sequences(lengths: np.ndarray) -> PackedSequences:
    """Describes sequences of `lengths` that lie one after the other, longest first."""
    ends = np.cumsum(lengths)
    cumulative = torch.from_numpy(np.concatenate([[0], ends]).astype(np.int32))
    longest = int(lengths[0])
    edges = bucket_edges(lengths)
    buckets = tuple(_make_bucket(lengths, ends, a, b) for a, b in zip(edges, edges[1:], strict=False))
    return PackedSequences(
        qkv_format="thd",
        cu_seqlens_q=cumulative,
        cu_seqlens_kv=cumulative,
        max_seqlen_q=longest,
        max_seqlen_kv=longest,
        buckets=buckets,
    )


def bucket_edges(lengths: np.ndarray) -> list[int]:
    """Where to cut sequences, sorted longest first, into buckets of the least total cost."""
    assert (np.diff(lengths) <= 0).all(), "sequences of a pack are sorted, longest first"
    firsts = np.flatnonzero(np.diff(lengths, prepend=lengths[0] + 1))
    edges = [*firsts.tolist(), len(lengths)]
    scores = [int(lengths[i]) * (int(lengths[i]) + LINEAR_COST) for i in firsts]
    best, cut = [0.0], [0]
    for j in range(1, len(edges)):
        # A bucket of sequences [edges[i], edges[j]) is padded to the length at edges[i].
        costs = [best[i] + FIXED_COST + (edges[j] - edges[i]) * scores[i] for i in range(j)]
        best.append(min(costs))
        cut.append(costs.index(best[-1]))
    path, j = [], len(edges) - 1
    while j > 0:
        path.append(edges[j])
        j = cut[j]
    return [0, *reversed(path)]


def _make_bucket(lengths: np.ndarray, ends: np.ndarray, first: int, last: int) -> Bucket:
    sizes, longest = lengths[first:last], int(lengths[first])
    begin, end = int(ends[first] - lengths[first]), int(ends[last - 1])
    starts = ends[first:last] - sizes - begin
    padded = starts[:, None] + np.minimum(np.arange(longest), sizes[:, None] - 1)
    # Token t of the bucket is the (t - start)th of its sequence i: place i * L + (t - start).
    shifts = np.arange(len(sizes)) * longest - starts
    packed = np.arange(end - begin) + np.repeat(shifts, sizes)
    return Bucket(
        begin=begin,
        end=end,
        num_sequences=len(sizes),
        length=longest,
        padded=torch.from_numpy(padded.reshape(-1).astype(np.int64)),
        packed=torch.from_numpy(packed.astype(np.int64)),
    )


class _Pad(torch.autograd.Function):
    """Packed -> padded. Padding has no gradient, since nothing attends to it: backward skips it."""

    @staticmethod
    def forward(context, tokens: Tensor, bucket: Bucket) -> Tensor:
        context.packed = bucket.packed
        return tokens.index_select(0, bucket.padded)

    @staticmethod
    def backward(context, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient.index_select(0, context.packed), None


class _Unpad(torch.autograd.Function):
    """Padded -> packed. Backward puts zeros at padding, which makes `_Pad`'s shortcut exact."""

    @staticmethod
    def forward(context, padded: Tensor, bucket: Bucket) -> Tensor:
        context.packed, context.num_places = bucket.packed, len(bucket.padded)
        return padded.index_select(0, bucket.packed)

    @staticmethod
    def backward(context, gradient: Tensor) -> tuple[Tensor, None]:
        places = gradient.new_zeros(context.num_places, *gradient.shape[1:])
        return places.index_copy_(0, context.packed, gradient), None


class PackedAttention(MegatronModule):
    """Core attention of a self-attention layer: causal, grouped queries, no dropout."""

    def __init__(
        self,
        config: TransformerConfig,
        *,
        layer_number,
        attn_mask_type,
        attention_type,
        softmax_scale=None,
        **_,
    ) -> None:
        super().__init__(config=config)
        assert config.context_parallel_size == 1 and config.attention_dropout == 0.0
        self.scale = softmax_scale

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, attention_mask, /, *, packed_seq_params, **_
    ) -> Tensor:
        """[P, H, D], [P, G, D], [P, G, D] -> [P, H * D]."""
        outputs = [
            self._attend(*(x[bucket.begin : bucket.end] for x in (query, key, value)), bucket)
            for bucket in packed_seq_params.buckets
        ]
        return torch.cat(outputs).flatten(1)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, bucket: Bucket) -> Tensor:
        size = (bucket.num_sequences, bucket.length)
        padded = (_Pad.apply(x, bucket).unflatten(0, size).transpose(1, 2) for x in (query, key, value))
        output = torch.nn.functional.scaled_dot_product_attention(
            *padded, is_causal=True, scale=self.scale, enable_gqa=query.shape[1] != key.shape[1]
        )
        return _Unpad.apply(output.transpose(1, 2).flatten(0, 1), bucket)

    def sharded_state_dict(self, prefix="", sharded_offsets=(), metadata=None) -> dict:
        return {}
