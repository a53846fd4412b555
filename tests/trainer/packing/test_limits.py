"""Windows and soft caps are those of the formula; a window goes by position, shared beginnings or not."""

import numpy as np
import pytest
import torch

from asyncrl.trainer.network.layer_attention import windowed_rows
from asyncrl.trainer.packing.attention import describe_pack
from asyncrl.trainer.packing.attention_kernels import (
    KERNELS,
    Heads,
    Limits,
    attend_by_formula,
    find_kernel,
)


@pytest.mark.parametrize("limits", [Limits(window=3), Limits(cap=0.8), Limits(window=3, cap=0.8)])
def test_sequences_that_share_a_prompt_see_their_own_window(limits: Limits) -> None:
    generator = torch.Generator().manual_seed(0)
    # A prompt of eight tokens, two responses of four and five.
    rows = [np.r_[0:8, 8:12], np.r_[0:8, 12:17]]
    positions = np.r_[0:12, 8:13]
    pack = describe_pack(rows, positions, kernel="sdpa")
    assert any(mask is not None for mask in pack.rows.masks), "the prompt is not shared"
    shape = (17, 4, 8), (17, 2, 8), (17, 2, 8)
    heads = [torch.randn(size, generator=generator, requires_grad=True) for size in shape]
    own = pack.rows if limits.window is None else windowed_rows(pack, limits.window)
    at_places = [each.index_select(0, pack.places) for each in heads]
    found = KERNELS["sdpa"].attend(*at_places, own, 0.5, limits=limits).index_select(0, pack.packed)
    for row in rows:
        alone = [each.index_select(0, torch.from_numpy(row)) for each in heads]
        rest = describe_pack([np.arange(len(row))], np.arange(len(row)), kernel="formula").rows
        wanted = attend_by_formula(*alone, rest, 0.5, limits)
        places = torch.from_numpy(row)
        assert (found.index_select(0, places) - wanted).abs().max() < 1e-5
        direction = torch.randn(wanted.shape, generator=generator)
        slopes = torch.autograd.grad(found.index_select(0, places), heads, direction, retain_graph=True)
        expected = torch.autograd.grad(wanted, heads, direction)
        for left, right in zip(slopes, expected, strict=True):
            assert (left - right).abs().max() < 1e-5


def test_the_formula_looks_at_as_many_tokens_as_the_window_has() -> None:
    rows = describe_pack([np.arange(5)], np.arange(5), kernel="formula").rows
    value = torch.eye(5)[:, None]
    zeros = torch.zeros(5, 1, 5)
    shares = attend_by_formula(zeros, zeros, value, rows, 1.0, Limits(window=2))[:, 0]
    assert shares.tolist() == [
        [1.0, 0.0, 0.0, 0.0, 0.0],
        [0.5, 0.5, 0.0, 0.0, 0.0],
        [0.0, 0.5, 0.5, 0.0, 0.0],
        [0.0, 0.0, 0.5, 0.5, 0.0],
        [0.0, 0.0, 0.0, 0.5, 0.5],
    ]


def test_on_a_cpu_the_usual_kernel_knows_all_limits() -> None:
    heads = Heads(4, 2, 16, torch.float32, Limits(window=4, cap=50.0))
    assert find_kernel("auto", torch.device("cpu"), heads) == "sdpa"
