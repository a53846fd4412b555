"""Attention over packed sequences, its blocks on a CPU, and rows that are picked many times."""

import random

import numpy as np
import pytest
import torch
from fakes.sequences import sequence
from fakes.shapes import tiny_shape
from torch import Tensor

from asyncrl.trainer.network.model import transformer_config
from asyncrl.trainer.packing import attention
from asyncrl.trainer.packing.attention import (
    CALL_COST,
    PackedAttention,
    bucket_edges,
    describe_pack,
    pick_rows,
)
from asyncrl.trainer.packing.cpu_attention import LONGEST, make_blocks
from asyncrl.trainer.packing.prefix_tree import pack_tree


def rows_of(lengths: list[int]) -> tuple[list[np.ndarray], np.ndarray]:
    """Packed tokens and positions of sequences that share nothing."""
    starts = np.cumsum([0, *lengths])
    rows = [np.arange(a, b) for a, b in zip(starts, starts[1:], strict=False)]
    return rows, np.concatenate([np.arange(length) for length in lengths])


def naive_attention(query: Tensor, key: Tensor, value: Tensor, rows: list[np.ndarray]) -> list[Tensor]:
    """Each sequence alone, by the formula: [length, heads * size] per sequence."""
    query, key, value = (x.squeeze(1) for x in (query, key, value))
    repeat = query.shape[1] // key.shape[1]
    outputs = []
    for row in rows:
        q, k, v = query[row], key[row].repeat_interleave(repeat, 1), value[row].repeat_interleave(repeat, 1)
        scores = torch.einsum("ihd,jhd->hij", q, k) / q.shape[-1] ** 0.5
        future = torch.ones(len(row), len(row), dtype=torch.bool).triu(1)
        weights = scores.masked_fill(future, float("-inf")).softmax(-1)
        outputs.append(torch.einsum("hij,jhd->ihd", weights, v).flatten(1))
    return outputs


def make_attention() -> PackedAttention:
    return PackedAttention(transformer_config(tiny_shape(), torch.float32))


def random_heads(num_tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((num_tokens, 1, 4, 8), (num_tokens, 1, 2, 8), (num_tokens, 1, 2, 8))
    return tuple(torch.randn(shape, generator=generator, requires_grad=True) for shape in shapes)


def assert_same(packed: Tensor, expected: Tensor, heads: tuple[Tensor, Tensor, Tensor]) -> None:
    """In values and gradients."""
    assert torch.allclose(packed, expected, atol=1e-6)
    direction = torch.randn_like(packed)
    slopes = (torch.autograd.grad(values, heads, direction) for values in (packed, expected))
    for got, wanted in zip(*slopes, strict=True):
        assert torch.allclose(got, wanted, atol=1e-5)


KERNELS = pytest.mark.parametrize("kernel", ["sdpa", "formula", "bitwise"])
"""Padded buckets, and whole sequences by cumulative lengths, as the kernels of GPUs take them."""


@KERNELS
@pytest.mark.parametrize("lengths", [[5], [1, 1, 1], [3, 17, 4, 17, 1, 16], [40, 2, 2, 2, 39]])
def test_packed_attention_is_the_attention_of_each_sequence_alone(lengths: list[int], kernel: str):
    rows, positions = rows_of(lengths)
    heads = random_heads(len(positions))
    pack = describe_pack(rows, positions, kernel=kernel)
    packed = make_attention()(*heads, None, packed_seq_params=pack).squeeze(1)
    expected = torch.cat(naive_attention(*heads, rows))
    assert_same(packed, expected, heads)


@KERNELS
def test_a_shared_prompt_attends_once_and_collects_every_response_gradient(kernel: str):
    # tokens 0-2 are the prompt, 3-4 and 5-8 two responses to it
    rows = [np.array([0, 1, 2, 3, 4]), np.array([0, 1, 2, 5, 6, 7, 8])]
    positions = np.array([0, 1, 2, 3, 4, 3, 4, 5, 6])
    heads = random_heads(9)
    pack = describe_pack(rows, positions, kernel=kernel)
    packed = make_attention()(*heads, None, packed_seq_params=pack).squeeze(1)
    first, second = naive_attention(*heads, rows)
    expected = torch.cat([first, second[3:]])
    assert_same(packed, expected, heads)


@KERNELS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_short_responses_to_one_prompt_attend_as_if_each_had_its_own(kernel: str, dtype: torch.dtype):
    # A prompt of 12 tokens with five responses, three of them with one first token; another sequence alone.
    prompt = np.arange(12)
    rows = [
        np.append(prompt, [12, 13]),
        np.append(prompt, [12, 14, 15]),
        np.append(prompt, [12, 16]),
        np.append(prompt, [17]),
        np.append(prompt, [18, 19]),
        np.arange(20, 34),
    ]
    positions = np.array([*range(12), 12, 13, 13, 14, 13, 12, 12, 13, *range(14)])
    heads = random_heads(34)
    pack = describe_pack(rows, positions, kernel=kernel)
    assert (len(pack.places) == 20 + 20) is (kernel == "sdpa")
    cast = [x.to(dtype) for x in heads]
    packed = make_attention()(*cast, None, packed_seq_params=pack).squeeze(1)
    outputs = naive_attention(*heads, rows)
    # Of each sequence what those before it have not shown.
    fresh = [outputs[0], *(o[n:] for o, n in zip(outputs[1:5], (13, 13, 12, 12), strict=True)), outputs[5]]
    expected = torch.cat(fresh)
    direction = torch.randn(packed.shape, generator=torch.Generator().manual_seed(1))
    tolerance = 1e-5 if dtype is torch.float32 else 2e-2
    for got, wanted in zip(
        [packed, *torch.autograd.grad(packed, heads, direction.to(dtype))],
        [expected, *torch.autograd.grad(expected, heads, direction)],
        strict=True,
    ):
        assert (got - wanted).norm() <= tolerance * wanted.norm()


def test_nothing_is_copied_where_no_token_is_shared(monkeypatch: pytest.MonkeyPatch):
    rows, positions = rows_of([3, 17, 4])
    heads = random_heads(24)
    pack = describe_pack(rows, positions, kernel="formula")
    assert pack.is_laid_out and not describe_pack(rows, positions, kernel="sdpa").is_laid_out
    monkeypatch.setattr(attention, "pick_rows", None)
    packed = make_attention()(*heads, None, packed_seq_params=pack).squeeze(1)
    assert_same(packed, torch.cat(naive_attention(*heads, rows)), heads)
    shared = describe_pack([*rows[:2], np.append(rows[1][:5], rows[2])], positions, kernel="formula")
    assert not shared.is_laid_out


def test_a_shared_prompt_is_expanded_into_cumulative_lengths_without_padding():
    rows = [np.array([0, 1, 2]), np.array([0, 1, 3, 4, 5]), np.array([6])]
    pack = describe_pack(rows, np.array([0, 1, 2, 2, 3, 4, 0]), kernel="flash_attn")
    # The first sequence, the second with its copy of the prompt, the third.
    assert pack.rows.cumulative.tolist() == [0, 3, 8, 9]
    assert pack.places.tolist() == [0, 1, 2, 0, 1, 3, 4, 5, 6]
    assert pack.packed.tolist() == [0, 1, 2, 5, 6, 7, 8]
    assert (pack.rows.longest, pack.rows.cumulative.dtype) == (5, torch.int32)


def test_padded_sequences_have_cumulative_lengths_too():
    rows, positions = rows_of([4, 3, 4])
    pack = describe_pack(rows, positions, kernel="sdpa")
    assert pack.rows.buckets == ((3, 4),)
    assert pack.rows.cumulative.tolist() == [0, 4, 8, 12] and len(pack.places) == 12


def test_equal_lengths_need_one_bucket_and_far_lengths_two():
    assert bucket_edges(np.full(100, 30)) == [0, 100]
    # padding 100 sequences of 10 to 500 would cost 100 x 250 000 scores, one more call 4 000
    assert bucket_edges(np.array([500] + [10] * 100)) == [0, 1, 101]


def test_buckets_cost_no_more_than_any_other_cut():
    lengths = np.array([60, 58, 40, 39, 22, 21, 20, 3])

    def cost(edges: list[int]) -> float:
        return sum(CALL_COST + (b - a) * lengths[a] ** 2 for a, b in zip(edges, edges[1:], strict=False))

    inner = range(1, len(lengths))
    every = [
        [0, *(i for i in inner if chosen >> i & 1), len(lengths)] for chosen in range(0, 2 ** len(lengths), 2)
    ]
    assert cost(bucket_edges(lengths)) == min(map(cost, every))


def test_values_and_gradients_are_those_of_index_select() -> None:
    rows = torch.randn(5, 3, 2, generator=torch.Generator().manual_seed(0), requires_grad=True)
    places = torch.tensor([4, 0, 4, 2, 4])
    weights = torch.randn(5, 3, 2, generator=torch.Generator().manual_seed(1))
    picked, expected = pick_rows(rows, places), rows.index_select(0, places)
    assert torch.equal(picked, expected)
    (got,) = torch.autograd.grad(picked, rows, weights)
    (wanted,) = torch.autograd.grad(expected, rows, weights)
    torch.testing.assert_close(got, wanted)
    assert torch.equal(got[1], torch.zeros(3, 2))


def test_gradients_of_a_row_picked_often_are_summed_in_float32() -> None:
    # A sum of halves in bfloat16 stays at 128, where its next number is 1 away.
    rows = torch.zeros(2, 8, dtype=torch.bfloat16, requires_grad=True)
    picked = pick_rows(rows, torch.zeros(300, dtype=torch.int64))
    picked.backward(torch.full((300, 8), 0.5, dtype=torch.bfloat16))
    assert rows.grad.dtype is torch.bfloat16
    assert rows.grad.tolist() == [[150.0] * 8, [0.0] * 8]


def test_short_responses_share_the_block_of_their_prompt():
    (block,) = make_blocks(pack_tree([sequence([1] * 10, [a, a, 0]) for a in (2, 3, 4)]).rows)
    assert block.tokens.tolist() == list(range(16))
    looks = [np.flatnonzero(row).tolist() for row in block.mask]
    prompt = list(range(10))
    assert looks[:10] == [prompt[: i + 1] for i in range(10)]
    assert looks[10:] == [
        [*prompt, 10],
        [*prompt, 10, 11],
        [*prompt, 12],
        [*prompt, 12, 13],
        [*prompt, 14],
        [*prompt, 14, 15],
    ]


def test_long_responses_have_a_block_each_and_no_mask():
    blocks = make_blocks(pack_tree([sequence([1] * 10, [a] * 60) for a in (2, 3, 4)]).rows)
    assert [len(block.tokens) for block in blocks] == [69] * 3
    assert all(block.mask is None for block in blocks)


def test_prompts_that_share_little_have_blocks_of_their_own():
    sequences = [sequence([1, *[a] * 20], [b, 0]) for a in (2, 3) for b in (4, 5, 6)]
    assert [len(block.tokens) for block in make_blocks(pack_tree(sequences).rows)] == [24, 24]


def test_no_block_is_longer_than_its_kernel_takes():
    prompt = [1] * (LONGEST - 10)
    blocks = make_blocks(pack_tree([sequence(prompt, [a, 0]) for a in range(2, 30)]).rows)
    assert [len(block.tokens) for block in blocks] == [LONGEST, LONGEST, LONGEST - 10 + 8]


@pytest.mark.parametrize("seed", range(100))
def test_each_place_looks_at_what_stands_before_it_in_its_sequences(seed: int):
    source = random.Random(seed)
    prompts = [source.choices(range(4), k=source.randint(1, 20)) for _ in range(source.randint(1, 4))]
    sequences = [
        sequence(source.choice(prompts), source.choices(range(3), k=source.randint(0, 6))) for _ in range(20)
    ]
    tree = pack_tree(sequences)
    blocks = make_blocks(tree.rows)
    pasts = {int(place): set(row[: i + 1].tolist()) for row in tree.rows for i, place in enumerate(row)}
    assert set(np.concatenate([block.tokens for block in blocks]).tolist()) == set(pasts)
    for block in blocks:
        size = len(block.tokens)
        mask = np.tri(size, dtype=np.bool_) if block.mask is None else block.mask
        assert [set(block.tokens[row].tolist()) for row in mask] == [pasts[t] for t in block.tokens.tolist()]
