"""Layers and attention whose result for one token does not depend on the other tokens of the batch, nor on
their number.

A matrix product sums each row in an order that depends on the number of rows, because that decides on the
kernel and its blocks; for one number of rows it depends neither on a row's place nor on the others (He et al.
2025, "Defeating nondeterminism in LLM inference"). So products run in blocks of ROWS rows, the last one
filled up with zeros. An elementwise function such as silu has a second implementation for the numbers that do
not fill a vector register; ROWS rows always do. Sums over a row, and the softmax over the vocabulary, are
computed row by row. All of it holds on one thread.

Server and trainer import these functions: the same ones, so the order of rounding is the same too.

Shapes: N tokens, K inputs, W outputs, H heads, D head size, V vocabulary.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

ROWS = 64
"""Rows of a product: as many as a busy server decodes at once, and 64 x any width fills whole registers."""


def padded(rows: Tensor) -> Tensor:
    """[N, ...] -> [N rounded up to ROWS, ...], filled up with zeros."""
    missing = -len(rows) % ROWS
    return torch.cat([rows, rows.new_zeros(missing, *rows.shape[1:])]) if missing else rows.contiguous()


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """rows [N, K] @ weight [W, K]^T + bias [W] -> [N, W]."""
    blocks = padded(rows).split(ROWS)
    if len(blocks) == 1:
        return functional.linear(blocks[0], weight, bias)[: len(rows)]
    if not blocks:
        return rows.new_empty(0, len(weight))
    return torch.cat([functional.linear(block, weight, bias) for block in blocks])[: len(rows)]


def norm(rows: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """RMSNorm of [..., K] (Zhang and Sennrich 2019), in float32, rounded once."""
    wide = rows.contiguous().float()
    mean = wide.square().sum(-1, keepdim=True) / rows.shape[-1]
    # A square root and a division are exact to the last bit; a reciprocal root need not be.
    return (wide / (mean + epsilon).sqrt() * weight.float()).to(rows.dtype)


def silu(rows: Tensor) -> Tensor:
    """x * sigmoid(x) of [N, ..., K]."""
    return functional.silu(padded(rows))[: len(rows)]


def inverse_frequencies(base: float, size: int, scaling_factor: float | None) -> Tensor:
    """[D / 2] float32 angles per position of a head of `size`; Llama 3's scaling by `scaling_factor`.

    Its other numbers are those of Llama 3.1 (asyncrl/model/folder.py refuses models with others).
    """
    found = 1.0 / base ** (torch.arange(0, size, 2, dtype=torch.float64) / size)
    if scaling_factor is not None:
        low, high, length = 1.0, 4.0, 8192
        turns = length * found / (2 * math.pi)
        share = ((turns - low) / (high - low)).clamp(0.0, 1.0)
        found = found * share + found / scaling_factor * (1 - share)
    return found.float()


def turns(positions: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines [N, 1, D / 2] float32 of positions [N]."""
    angles = padded(positions).float()[:, None] * frequencies
    return angles.cos()[: len(positions), None], angles.sin()[: len(positions), None]


def rotate(heads: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """[N, H, D], its first half turned against its second (Su et al. 2021), in float32, rounded once."""
    first, second = heads.float().chunk(2, -1)
    turned = (first * cosines - second * sines, second * cosines + first * sines)
    return torch.cat(turned, -1).to(heads.dtype)


def token_logprobs(logits: Tensor, temperatures: Tensor, tokens: Tensor) -> Tensor:
    """[N] float32 natural log-probs of tokens [N] under softmax(logits [N, V] / temperatures [N, 1])."""
    everything = torch.log_softmax(logits.float() / temperatures, -1)
    return everything.gather(1, tokens[:, None].long()).squeeze(1)


KEYS = 64
QUERIES = 16
SCORES_AT_ONCE = 2**21
"""Scores of the tiles that are computed together; 8 MiB."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Tiles that are computed together, those that see most first."""

    tiles: Tensor | None
    """[t] int64; None for all in order."""
    owners: Tensor | None
    """[t] int64, the sequence and key-value head of each; None for all in order."""
    seen: Tensor
    """[t, QUERIES, 1] int32, how many keys a query sees."""
    active: tuple[int, ...]
    """How many of the tiles see something of each block."""


class Attention:
    """Causal attention in which a query's result depends on itself and the keys that it sees alone. Masks and
    places of a pass's queries are prepared once for all layers.

    Keys lie in blocks of KEYS, counted from the first token of the sequence; queries in tiles of QUERIES that
    share a key-value head. Every product is one tile with one block, so decoding one token, prefilling a
    chunk behind a cached prefix and a whole packed sequence multiply the same shapes, and the products with
    values are added block after block. What a query does not see adds exact zeros. Scores and probabilities
    are float32.

    Shapes: B sequences, L queries and K keys of each, padding included; H heads, G of them key-value; T
    tiles, M blocks of keys.
    """

    def __init__(self, seen: Tensor, num_heads: int, num_kv_heads: int) -> None:
        """Each query sees the first `seen` [B, L] of its sequence's keys, at least one."""
        batch, length = seen.shape
        self._kv_heads = num_kv_heads
        self._size = (batch, length, num_kv_heads, num_heads // num_kv_heads)
        self._num_rows = length * self._size[3]
        self._num_tiles = -(-self._num_rows // QUERIES)
        rows = seen.repeat_interleave(self._size[3], 1)
        # Padding sees one key, so that nothing divides by zero.
        rows = torch.nn.functional.pad(rows, (0, -self._num_rows % QUERIES), value=1)
        tiles = rows.view(batch, 1, self._num_tiles, QUERIES).expand(-1, num_kv_heads, -1, -1)
        self.num_keys = -(-int(seen.max()) // KEYS) * KEYS
        self._parts = self._plan(tiles.reshape(-1, QUERIES))

    def _plan(self, seen: Tensor) -> list[_Part]:
        needs = (seen.amax(1) + KEYS - 1) // KEYS
        is_whole = self._num_tiles == 1
        order = torch.arange(len(seen)) if is_whole else needs.argsort(descending=True, stable=True)
        sorted_needs = needs[order].tolist()
        parts, first = [], 0
        while first < len(seen):
            most = int(needs.max()) if is_whole else sorted_needs[first]
            end = min(len(seen), first + max(1, SCORES_AT_ONCE // (QUERIES * KEYS * most)))
            chosen, own = order[first:end], sorted_needs[first:end]
            counts = (sum(need > block for need in own) for block in range(most))
            active = tuple(end - first if is_whole else count for count in counts)
            of_part = seen[chosen][..., None].int()
            in_order = is_whole and end - first == len(seen)
            tiles = None if in_order else chosen
            parts.append(_Part(tiles, None if in_order else chosen // self._num_tiles, of_part, active))
            first = end
        return parts

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """[B, L, H, D] and [B, num_keys, G, D] twice -> [B, L, H, D]."""
        batch, length, groups, each = self._size
        size = queries.shape[-1]
        rows = queries.float().reshape(batch, length, groups, each, size).transpose(1, 2)
        rows = rows.reshape(batch * groups, self._num_rows, size)
        rows = torch.nn.functional.pad(rows, (0, 0, 0, -self._num_rows % QUERIES)).view(-1, QUERIES, size)
        keys, values = self._blocks(keys), self._blocks(values)
        output = torch.empty_like(rows)
        for part in self._parts:
            if part.tiles is None:
                output = _attend(rows, keys, values, part, scale)
            else:
                output[part.tiles] = _attend(rows[part.tiles], keys, values, part, scale)
        output = output.view(batch, groups, -1, size)[:, :, : self._num_rows]
        output = output.view(batch, groups, length, each, size).transpose(1, 2)
        return output.reshape(queries.shape).to(queries.dtype)

    def _blocks(self, keys: Tensor) -> Tensor:
        """[B, num_keys, G, D] -> [B * G, M, KEYS, D] float32."""
        heads = keys.float().transpose(1, 2)
        return heads.reshape(-1, self.num_keys // KEYS, KEYS, keys.shape[-1])


def _attend(queries: Tensor, keys: Tensor, values: Tensor, part: _Part, scale: float) -> Tensor:
    """[t, QUERIES, D], [B * G, M, KEYS, D] twice -> [t, QUERIES, D]."""
    scores = queries.new_empty(*queries.shape[:2], len(part.active) * KEYS)
    places = [slice(block * KEYS, (block + 1) * KEYS) for block in range(len(part.active))]
    for block, (place, count) in enumerate(zip(places, part.active, strict=True)):
        scores[:count, :, place] = torch.bmm(queries[:count], _select(keys, block, part, count).mT)
    hidden = torch.arange(scores.shape[2], dtype=torch.int32) >= part.seen
    probabilities = scores.mul_(scale).masked_fill_(hidden, -math.inf).softmax(-1)
    output = torch.zeros_like(queries)
    for block, (place, count) in enumerate(zip(places, part.active, strict=True)):
        # In memory of its own: the same strides in every call.
        weights = probabilities[:count, :, place].contiguous()
        output[:count] += torch.bmm(weights, _select(values, block, part, count))
    return output


def _select(blocks: Tensor, block: int, part: _Part, count: int) -> Tensor:
    """[t, KEYS, D], one block of keys for each tile."""
    return blocks[:, block] if part.owners is None else blocks[part.owners[:count], block]
