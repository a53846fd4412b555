"""Windows and soft caps are those of the formula; a window goes by position, shared beginnings or not."""

import numpy as np
import pytest
import torch

from asyncrl.errors import InputError
from asyncrl.trainer.network.layer_specs import windowed_rows
from asyncrl.trainer.packing.attention import describe_pack
from asyncrl.trainer.packing.attention_kernels import (
    KERNELS,
    Heads,
    Limits,
    attend_by_formula,
    find_kernel,
)

LIMITS = [
    *(Limits(window=3), Limits(cap=0.8), Limits(window=3, cap=0.8)),
    *(Limits(has_sinks=True), Limits(window=3, has_sinks=True)),
]


@pytest.mark.parametrize("limits", LIMITS)
def test_sequences_that_share_a_prompt_see_their_own_window(limits: Limits) -> None:
    generator = torch.Generator().manual_seed(0)
    # A prompt of eight tokens, two responses of four and five.
    rows = [np.r_[0:8, 8:12], np.r_[0:8, 12:17]]
    positions = np.r_[0:12, 8:13]
    pack = describe_pack(rows, positions, kernel="sdpa")
    assert any(mask is not None for mask in pack.rows.masks), "the prompt is not shared"
    shape = (17, 4, 8), (17, 2, 8), (17, 2, 8)
    heads = [torch.randn(size, generator=generator, requires_grad=True) for size in shape]
    sinks = torch.randn(4, generator=generator, requires_grad=True)
    more = {"sinks": sinks} if limits.has_sinks else {}
    leaves = [*heads, *more.values()]
    own = pack.rows if limits.window is None else windowed_rows(pack, limits.window)
    at_places = [each.index_select(0, pack.places) for each in heads]
    found = KERNELS["sdpa"].attend(*at_places, own, 0.5, limits=limits, **more).index_select(0, pack.packed)
    for row in rows:
        alone = [each.index_select(0, torch.from_numpy(row)) for each in heads]
        rest = describe_pack([np.arange(len(row))], np.arange(len(row)), kernel="formula").rows
        wanted = attend_by_formula(*alone, rest, 0.5, limits, **more)
        places = torch.from_numpy(row)
        assert (found.index_select(0, places) - wanted).abs().max() < 1e-5
        direction = torch.randn(wanted.shape, generator=generator)
        slopes = torch.autograd.grad(found.index_select(0, places), leaves, direction, retain_graph=True)
        expected = torch.autograd.grad(wanted, leaves, direction)
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


def test_a_sink_takes_the_share_of_a_token_with_its_score() -> None:
    rows = describe_pack([np.arange(3)], np.arange(3), kernel="formula").rows
    value, zeros = torch.eye(3)[:, None], torch.zeros(3, 1, 3)
    sinks = torch.zeros(1)
    shares = attend_by_formula(zeros, zeros, value, rows, 1.0, sinks=sinks)[:, 0]
    assert torch.allclose(shares, torch.tensor([[1 / 2, 0, 0], [1 / 3, 1 / 3, 0], [1 / 4, 1 / 4, 1 / 4]]))
    found = KERNELS["sdpa"].attend(zeros, zeros, value, rows, 1.0, sinks=sinks)[:, 0]
    assert torch.allclose(found, shares)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sinks_in_bfloat16_are_those_of_the_formula(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    rows = describe_pack([np.arange(40)], np.arange(40), kernel="sdpa").rows
    tensors = [torch.randn(40, n, 16, generator=generator).to(dtype) for n in (4, 2, 2)]
    sinks = torch.tensor([-1.0, 0.0, 1.0, 2.0], dtype=dtype, requires_grad=True)
    found, wanted = (
        attend(*tensors, rows, 0.25, sinks=sinks) for attend in (KERNELS["sdpa"].attend, attend_by_formula)
    )
    slopes = [torch.autograd.grad(each.float().square().sum(), sinks)[0] for each in (found, wanted)]
    close = 1e-5 if dtype is torch.float32 else 2e-2
    assert (found - wanted).norm() < close * wanted.norm()
    assert (slopes[0] - slopes[1]).norm() < close * slopes[1].norm()


@pytest.mark.parametrize("name", ["transformer_engine", "sdpa"])
def test_a_kernel_of_gpus_without_sinks_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some GPU")
    heads = Heads(4, 2, 16, torch.bfloat16, Limits(has_sinks=True))
    with pytest.raises(InputError, match=f"{name}: it knows no attention sinks"):
        find_kernel(name, torch.device("cuda"), heads)


def test_on_a_cpu_the_usual_kernel_knows_all_limits() -> None:
    heads = Heads(4, 2, 16, torch.float32, Limits(window=4, cap=50.0))
    assert find_kernel("auto", torch.device("cpu"), heads) == "sdpa"
