"""Causal attention over packed sequences for any of Megatron's specs, without a loop over sequences.

Linear layers see packed tokens, a shared prompt once. Only here is each sequence laid out whole, with a copy
of its prompt, as cumulative lengths describe it, for the kernels of `attention_kernels`; the gradients of the
copies are summed in float32. Where a kernel makes a call per length, sequences of similar lengths are padded
to one: padding stands behind its sequence, so causality alone masks it. Of context-parallel ranks each
attends over all tokens for its heads.

Shapes: P packed tokens, C of them on this context-parallel rank; Q places of all sequences, padding included;
H heads of this tensor-parallel rank, G of them key-value, D head size.
"""

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from megatron.core import parallel_state
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from asyncrl.serving.kernels.delta_rule import ChunkTree, make_chunk_tree
from asyncrl.trainer.packing.attention_kernels import KERNELS
from asyncrl.trainer.packing.context_parallel import heads_for_tokens, own_tokens, tokens_for_heads
from asyncrl.trainer.packing.cpu_attention import Block, make_blocks
from asyncrl.trainer.packing.limits import Rows
from asyncrl.trainer.packing.rotary import Turns, rotate, turns_of

CALL_COST = 4000.0
"""Cost of one more attention call, in scores of the padded B x L x L (about 0.3 ms against 70 ns each)."""
CUDA_CALL_COST = 1e6
"""The same on a GPU, by estimate: some 20 us of launches against 20 ps."""


@dataclass(kw_only=True)
class PackedSequences(PackedSeqParams):
    """Passed through Megatron's layers untouched: what our attention and rotary positions need of a pack."""

    positions: Tensor
    """[P] int64, each token's place in its sequence."""
    rows: Rows
    """The sequences, padding included; `positions` are below their longest."""
    places: Tensor
    """[Q] int64, the packed token at each place; padding repeats its sequence's last."""
    packed: Tensor
    """[P] int64, one place of each packed token."""
    kernel: str
    """One of `attention_kernels.KERNELS`."""
    is_laid_out: bool
    """Whether each place is the packed token of its number: nothing is shared, padded or in another order."""
    columns: dict[str, Any] = field(default_factory=dict)
    """Name -> what features tell their layers of the tokens (`columns.InputColumn`)."""
    turns: tuple[Tensor, Tensor] | None = None
    """Cosines and sines [P, 1, D / 2], where `network/bitwise.py` rotates."""
    rotation: tuple[Tensor, Tensor] | None = None
    """Cosines and sines [C, 1, D] of `PackedRotary`, by which attention rotates."""
    layer_rotations: tuple[Turns, Turns] | None = None
    """Rotations of full layers and of sliding ones, by `network/layer_specs.py`."""
    windowed: dict[int, Rows] = field(default_factory=dict)
    """Window -> `rows` with masks that end at it, by `network/layer_specs.py`."""
    lines: tuple[np.ndarray, ...] = ()
    """The packed tokens of each sequence."""
    chunks: ChunkTree | None = None
    """The sequences as layers with a state need them, once one has asked for it."""

    def chunk_tree(self) -> ChunkTree:
        if self.chunks is None:
            self.chunks = make_chunk_tree(self.lines, len(self.positions), self.positions.device)
        return self.chunks


def describe_pack(rows: list[np.ndarray], positions: np.ndarray, *, kernel: str) -> PackedSequences:
    """Describes packed tokens of which `rows[i]` make up sequence i; rows may share their first tokens."""
    pads = KERNELS[kernel].pads
    takes_masks = KERNELS[kernel].takes_masks and not torch.cuda.is_available()
    blocks = make_blocks(rows) if takes_masks else [Block(row) for row in rows]
    if pads:
        blocks = sorted(blocks, key=lambda block: -len(block.tokens))
    lengths = np.fromiter((len(block.tokens) for block in blocks), np.int64, len(blocks))
    # In the order of the pack places are tokens, where no token is shared.
    edges = bucket_edges(lengths) if pads else list(range(len(blocks) + 1))
    buckets = [(b - a, int(lengths[a])) for a, b in pairwise(edges)]
    of_buckets = [blocks[a:b] for a, b in pairwise(edges)]
    places = np.concatenate([_pad(bucket) for bucket in of_buckets])
    masks = [_pad_masks(bucket) for bucket in of_buckets]
    # Padding and later copies of a shared token write first, its first real place last: any copy would do.
    packed = np.empty(len(positions), np.int64)
    packed[places[::-1]] = np.arange(len(places))[::-1]
    ends = np.cumsum(np.repeat([length for _, length in buckets], [count for count, _ in buckets]))
    cumulative = torch.from_numpy(np.concatenate([[0], ends]).astype(np.int32))
    return PackedSequences(
        positions=torch.from_numpy(positions),
        rows=Rows(cumulative, longest=int(lengths.max()), buckets=tuple(buckets), masks=tuple(masks)),
        places=torch.from_numpy(places),
        packed=torch.from_numpy(packed),
        kernel=kernel,
        is_laid_out=np.array_equal(places, np.arange(len(positions))),
        lines=tuple(rows),
    )


def equal_edges(lengths: np.ndarray) -> list[int]:
    """Where the length changes in sequences that are sorted longest first, ends included."""
    assert (np.diff(lengths) <= 0).all(), "sequences are sorted, longest first"
    return [0, *(np.flatnonzero(np.diff(lengths)) + 1).tolist(), len(lengths)]


def bucket_edges(lengths: np.ndarray) -> list[int]:
    """Where to cut sequences, sorted longest first, into buckets of the least total cost."""
    edges = np.array(equal_edges(lengths))
    scores = lengths[edges[:-1]].astype(np.float64) ** 2
    call_cost = CUDA_CALL_COST if torch.cuda.is_available() else CALL_COST
    best, cut = np.zeros(len(edges)), np.zeros(len(edges), np.int64)
    for j in range(1, len(edges)):
        # The bucket of sequences [edges[i], edges[j]) is padded to the length at edges[i].
        costs = best[:j] + call_cost + (edges[j] - edges[:j]) * scores[:j]
        cut[j] = costs.argmin()
        best[j] = costs[cut[j]]
    path, j = [], len(edges) - 1
    while j > 0:
        path.append(int(edges[j]))
        j = int(cut[j])
    return [0, *reversed(path)]


# The first block of a bucket is its longest.
def _pad(blocks: list[Block]) -> np.ndarray:
    padded = np.empty((len(blocks), len(blocks[0].tokens)), np.int64)
    for place, block in zip(padded, blocks, strict=True):
        place[: len(block.tokens)] = block.tokens
        place[len(block.tokens) :] = block.tokens[-1]
    return padded.reshape(-1)


def _pad_masks(blocks: list[Block]) -> Tensor | None:
    """[B, L, L]; None where causality alone masks them all, padding included."""
    if all(block.mask is None for block in blocks):
        return None
    masks = np.tri(len(blocks[0].tokens), dtype=np.bool_)[None].repeat(len(blocks), axis=0)
    for mask, block in zip(masks, blocks, strict=True):
        if block.mask is not None:
            mask[: len(block.mask), : len(block.mask)] = block.mask
    return torch.from_numpy(masks)


class _Pack(torch.autograd.Function):
    """Places [Q, ...] -> packed [P, ...]."""

    @staticmethod
    def forward(context: Any, places: Tensor, sequences: PackedSequences) -> Tensor:
        context.packed, context.num_places = sequences.packed, len(places)
        return places.index_select(0, sequences.packed)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        places = gradient.new_zeros(context.num_places, *gradient.shape[1:])
        return places.index_copy_(0, context.packed, gradient), None


def pick_rows(rows: Tensor, places: Tensor) -> Tensor:
    """[N, ...], [K] -> [K, ...]: rows by their places, one row perhaps many times, gradients summed in
    float32.

    torch sums the gradients of `index_select` in their own dtype on a GPU: in bfloat16 a row that is picked
    by hundreds of responses to one prompt loses what each further one adds.
    """
    picked: Tensor = _PickRows.apply(rows, places)
    return picked


class _PickRows(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, rows: Tensor, places: Tensor) -> Tensor:
        context.save_for_backward(places)
        context.num_rows = len(rows)
        return rows.index_select(0, places)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (places,) = context.saved_tensors
        # On a CPU torch keeps such sums in float32 by itself.
        picked = gradient if gradient.device.type == "cpu" else gradient.float()
        rows = picked.new_zeros(context.num_rows, *picked.shape[1:])
        return rows.index_add_(0, places, picked).to(gradient.dtype), None


class PackedAttention(MegatronModule):
    """Core attention of a self-attention layer: causal, grouped queries, no dropout."""

    def __init__(self, config: TransformerConfig, *, softmax_scale: float | None = None, **_: Any) -> None:
        super().__init__(config=config)
        assert config.attention_dropout == 0.0
        self.scale = softmax_scale

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: None,
        /,
        *,
        packed_seq_params: PackedSequences,
        **_: Any,
    ) -> Tensor:
        """[C, 1, H, D], [C, 1, G, D], [C, 1, G, D] -> [C, 1, H * D]."""
        query, key, value = (x.squeeze(1) for x in (query, key, value))
        query, key = self._rotate(query, key, packed_seq_params)
        group = parallel_state.get_context_parallel_group()
        if group.size() == 1:
            return self._attend_packed(query, key, value, packed_seq_params).unsqueeze(1)
        # With fewer key-value heads than ranks, each goes to all ranks whose queries look at it.
        copies = group.size() // math.gcd(group.size(), key.shape[1])
        key, value = (x.repeat_interleave(copies, dim=1) for x in (key, value))
        query, key, value = (tokens_for_heads(x, group) for x in (query, key, value))
        heads = self._attend_packed(query, key, value, packed_seq_params).unflatten(1, (query.shape[1], -1))
        return heads_for_tokens(heads, group).flatten(1).unsqueeze(1)

    def _rotate(self, query: Tensor, key: Tensor, sequences: PackedSequences) -> tuple[Tensor, Tensor]:
        """[C, H, D], [C, G, D] -> the same."""
        if (turns := sequences.rotation) is None:
            return query, key
        return rotate(query, turns), rotate(key, turns)

    def _attend_packed(self, query: Tensor, key: Tensor, value: Tensor, sequences: PackedSequences) -> Tensor:
        """[P, H, D], [P, G, D], [P, G, D] -> [P, H * D]."""
        scale = self.scale or query.shape[-1] ** -0.5
        if sequences.is_laid_out:
            return self._attend(query, key, value, sequences, scale).flatten(1)
        # Gradients at padding are zero: nothing attends to it and `_Pack` reads nothing of it.
        query, key, value = (pick_rows(each, sequences.places) for each in (query, key, value))
        output = self._attend(query, key, value, sequences, scale)
        packed: Tensor = _Pack.apply(output.flatten(1), sequences)
        return packed

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, sequences: PackedSequences, scale: float
    ) -> Tensor:
        """[Q, H, D], [Q, G, D], [Q, G, D] -> [Q, H, D]."""
        return KERNELS[sequences.kernel].attend(query, key, value, sequences.rows, scale)

    def sharded_state_dict(self, *_: Any, **__: Any) -> dict[str, Any]:
        return {}


class PackedRotary(RotaryEmbedding):
    """Rotary angles looked up by each token's own position, once per micro-batch.

    Megatron's way slices them per sequence in every layer, and knows no sequences that share a prompt.
    """

    def get_rotary_seq_len(self, *arguments: Any) -> PackedSequences:
        sequences: PackedSequences = arguments[-1]
        return sequences

    def forward(self, sequences: PackedSequences, **_: Any) -> None:
        """Leaves what attention rotates by; Megatron itself then rotates nothing."""
        angles: Tensor = self.get_emb(sequences.rows.longest)
        sequences.rotation = turns_of(angles.index_select(0, own_tokens(sequences.positions)))
