"""Fast sampling from a tiny Qwen3 on one core, for programs that put a process in the place of the servers.

transformers' `generate` spends most of its time between kernels where a model has a million parameters; this
decodes about six times as fast: projections are joined, the cache is laid out once, and sequences leave the
batch as they end. tests/measuring/test_decoding.py holds it against transformers.

Legend: B sequences, T columns of prompt and response, K key heads, D head size, V vocabulary.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Qwen3Config

COMPACT_BELOW = 0.75
"""Share of unfinished sequences below which the others leave the batch."""


@dataclass(frozen=True)
class _Layer:
    norm: Tensor
    qkv: Tensor
    qk_norm: Tensor
    """[query and key heads, D]."""
    output: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


class TinyModel:
    """The weights of a Qwen3 as they decode fastest."""

    def __init__(self, config: Qwen3Config, weights: Iterable[tuple[str, Tensor]]) -> None:
        """`weights` by their names in a model folder."""
        found = {name: tensor.float() for name, tensor in weights}
        self.config = config
        self.embedding = found["model.embed_tokens.weight"]
        self.norm = found["model.norm.weight"]
        self.head = found.get("lm_head.weight", self.embedding)
        self.layers = [_layer(config, found, f"model.layers.{i}.") for i in range(config.num_hidden_layers)]
        base = config.rope_parameters["rope_theta"]
        self.frequencies = base ** -(torch.arange(0, config.head_dim, 2) / config.head_dim)

    def forward(
        self, tokens: Tensor, columns: slice, cache: list[tuple[Tensor, Tensor]], padding: Tensor
    ) -> Tensor:
        """Log-odds [B, V] after the last of `columns`, whose tokens are [B, columns]; fills their place in
        the cache of [B, K, T, D]. `padding` [B] is the number of columns in front of each prompt."""
        where = torch.arange(columns.start, columns.stop)
        angles = (where - padding[:, None]).clamp_min(0)[..., None] * self.frequencies
        rotation = tuple(torch.cat([each, each], -1)[:, None] for each in (angles.cos(), angles.sin()))
        seen = torch.arange(columns.stop)
        is_hidden = (seen > where[:, None]) | (seen < padding[:, None, None])
        # A column of padding sees itself: a row without any column has no softmax.
        is_hidden &= seen != where[:, None]
        bias = torch.zeros(is_hidden.shape).masked_fill_(is_hidden, -torch.inf)[:, None]
        x = F.embedding(tokens, self.embedding)
        for layer, kept in zip(self.layers, cache, strict=True):
            x = x + self._attend(layer, self._normed(x, layer.norm), columns, kept, rotation, bias)
            gate, up = F.linear(self._normed(x, layer.mlp_norm), layer.gate_up).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, layer.down)
        return F.linear(self._normed(x[:, -1], self.norm), self.head)

    def _attend(
        self,
        layer: _Layer,
        x: Tensor,
        columns: slice,
        kept: tuple[Tensor, Tensor],
        rotation: tuple[Tensor, ...],
        bias: Tensor,
    ) -> Tensor:
        (keys, values), size, num_keys = kept, self.config.head_dim, self.config.num_key_value_heads
        num_queries, (rows, length, _) = self.config.num_attention_heads, x.shape
        heads = F.linear(x, layer.qkv).view(rows, length, -1, size)
        qk, v = heads.split([num_queries + num_keys, num_keys], 2)
        qk = F.rms_norm(qk, (size,), None, self.config.rms_norm_eps) * layer.qk_norm
        q, k = _rotated(qk.transpose(1, 2), rotation).split([num_queries, num_keys], 1)
        keys[:, :, columns], values[:, :, columns] = k, v.transpose(1, 2)
        # Queries that share a key head are rows of one product.
        q = q.reshape(rows, num_keys, -1, size) * size**-0.5
        scores = (q @ keys[:, :, : columns.stop].transpose(-1, -2)).view(rows, num_queries, length, -1) + bias
        mixed = scores.softmax(-1).view(rows, num_keys, -1, columns.stop) @ values[:, :, : columns.stop]
        mixed = mixed.view(rows, num_queries, length, size).transpose(1, 2).reshape(rows, length, -1)
        return F.linear(mixed, layer.output)

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, self.config.rms_norm_eps)


def _layer(config: Qwen3Config, found: dict[str, Tensor], name: str) -> _Layer:
    attention, mlp = name + "self_attn.", name + "mlp."
    return _Layer(
        norm=found[name + "input_layernorm.weight"],
        qkv=torch.cat([found[attention + f"{each}_proj.weight"] for each in "qkv"]),
        qk_norm=torch.cat(
            [
                found[attention + f"{each}_norm.weight"].expand(num_heads, -1)
                for each, num_heads in (("q", config.num_attention_heads), ("k", config.num_key_value_heads))
            ]
        ),
        output=found[attention + "o_proj.weight"],
        mlp_norm=found[name + "post_attention_layernorm.weight"],
        gate_up=torch.cat([found[mlp + "gate_proj.weight"], found[mlp + "up_proj.weight"]]),
        down=found[mlp + "down_proj.weight"],
    )


def _rotated(x: Tensor, rotation: tuple[Tensor, ...]) -> Tensor:
    cos, sin = rotation
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


@torch.no_grad()
def sample(
    model: TinyModel,
    prompts: Sequence[list[int]],
    *,
    num_samples: int,
    temperature: float,
    max_new_tokens: int,
    end: int,
    suppressed: Sequence[int],
) -> list[tuple[list[int], list[float]]]:
    """(tokens, log-probs) of `num_samples` responses to each prompt, in their order, up to the end token.

    Temperature 0 takes the likeliest token, whose log-prob is that at temperature 1. `suppressed` tokens have
    no probability. Draws from torch's global generator.
    """
    longest, config = max(map(len, prompts)), model.config
    tokens = torch.tensor([[end] * (longest - len(each)) + each for each in prompts])
    padding = torch.tensor([longest - len(each) for each in prompts])
    shape = (len(prompts), config.num_key_value_heads, longest + max_new_tokens, config.head_dim)
    cache = [(torch.zeros(shape), torch.zeros(shape)) for _ in model.layers]
    logits = model.forward(tokens, slice(0, longest), cache, padding)
    # The samples of a prompt share its pass.
    every = torch.arange(len(prompts)).repeat_interleave(num_samples)
    logits, padding, cache = logits[every], padding[every], _rows(cache, every)
    found: list[tuple[list[int], list[float]]] = [([], []) for _ in every]
    places = torch.arange(len(found))
    is_open = torch.ones(len(found), dtype=torch.bool)
    for column in range(longest, longest + max_new_tokens):
        logits[:, list(suppressed)] = -torch.inf
        logprobs = (logits / (temperature or 1.0)).log_softmax(-1)
        chosen = torch.multinomial(logprobs.exp(), 1) if temperature else logprobs.argmax(-1, keepdim=True)
        values = logprobs.gather(-1, chosen)[:, 0].tolist()
        rows = zip(places.tolist(), chosen[:, 0].tolist(), values, is_open.tolist(), strict=True)
        for place, token, value, wanted in rows:
            if wanted:
                found[place][0].append(token)
                found[place][1].append(value)
        is_open &= chosen[:, 0] != end
        num_open = int(is_open.sum())
        if not num_open or column + 1 == longest + max_new_tokens:
            break
        if num_open < COMPACT_BELOW * len(is_open):
            rows_left = is_open.nonzero()[:, 0]
            places, chosen, padding = places[rows_left], chosen[rows_left], padding[rows_left]
            cache, is_open = _rows(cache, rows_left), is_open[rows_left]
        logits = model.forward(chosen, slice(column, column + 1), cache, padding)
    return found


def _rows(cache: list[tuple[Tensor, Tensor]], rows: Tensor) -> list[tuple[Tensor, Tensor]]:
    return [(keys[rows], values[rows]) for keys, values in cache]
