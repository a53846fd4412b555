"""The kernels of attention: one interface, the same numbers, and what is refused."""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from asyncrl.errors import InputError
from asyncrl.recipe import Trainer
from asyncrl.trainer.network.layer_specs import windowed_rows
from asyncrl.trainer.packing import attention_kernels, gpu_attention
from asyncrl.trainer.packing.attention import describe_pack
from asyncrl.trainer.packing.attention_kernels import (
    CHOICES,
    KERNELS,
    Attend,
    Heads,
    Kernel,
    attend_by_formula,
    attend_in_buckets,
    find_kernel,
)
from asyncrl.trainer.packing.limits import Limits, Rows

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
HEADS = Heads(count=4, kv_count=2, size=16, dtype=torch.float32)


def rows_of(lengths: list[int]) -> Rows:
    """Of sequences that are sorted longest first."""
    values, counts = np.unique(lengths, return_counts=True)
    buckets = [(int(count), int(value)) for value, count in zip(values[::-1], counts[::-1], strict=True)]
    cumulative = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32)
    return Rows(cumulative, longest=lengths[0], buckets=tuple(buckets))


def random_inputs(rows: Rows, heads: Heads = HEADS) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    counts = (heads.count, heads.kv_count, heads.kv_count)
    return [torch.randn(int(rows.cumulative[-1]), count, heads.size, generator=generator) for count in counts]


def test_the_formula_is_the_softmax_of_the_scores_of_what_came_before():
    # One head of size 1; the second place weighs values 10 and 20 by e^(1 x 0) and e^(1 x ln 3).
    rows = rows_of([2, 1])
    query, key = torch.ones(3, 1, 1), torch.tensor([0.0, np.log(3.0), 5.0]).view(3, 1, 1)
    value = torch.tensor([10.0, 20.0, 7.0]).view(3, 1, 1)
    output = attend_by_formula(query, key, value, rows, 1.0)
    assert output.flatten().tolist() == pytest.approx([10.0, 17.5, 7.0])


@pytest.mark.parametrize("lengths", [[5], [9, 9, 4, 1, 1], [40, 39, 2, 2, 2]])
def test_buckets_give_the_numbers_and_gradients_of_the_formula(lengths: list[int]):
    rows = rows_of(lengths)
    inputs = [x.requires_grad_() for x in random_inputs(rows)]
    outputs = [attend(*inputs, rows, 0.3) for attend in (attend_in_buckets, attend_by_formula)]
    assert torch.allclose(*outputs, atol=1e-6)
    direction = torch.randn_like(outputs[0])
    gradients = [torch.autograd.grad(output, inputs, direction) for output in outputs]
    for left, right in zip(*gradients, strict=True):
        assert torch.allclose(left, right, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_a_cpu_auto_is_sdpa_and_it_passes_the_trial_of_kernels(dtype: torch.dtype):
    heads = dataclasses.replace(HEADS, dtype=dtype)
    assert find_kernel("auto", CPU, heads) == find_kernel("sdpa", CPU, heads) == "sdpa"


@pytest.mark.parametrize("name", [name for name in CHOICES if name != "sdpa"])
def test_a_kernel_of_gpus_is_refused_on_a_cpu(name: str):
    with pytest.raises(InputError, match=f"{name}: it runs on a GPU only.*trainer.attention to auto"):
        find_kernel(name, CPU, HEADS)


def broken(kind: str) -> Kernel:
    def attend(query: Tensor, key: Tensor, value: Tensor, rows: Rows, scale: float) -> Tensor:
        if kind == "raises":
            raise RuntimeError("No available kernel. Aborting execution.\nmore")
        output = attend_by_formula(query, key, value, rows, scale)
        # Not causal across sequences, wrong by a factor, not finite, or right with a wrong gradient.
        edits = {"shifted": output.roll(1, 0), "scaled": 1.1 * output, "nan": output * torch.nan}
        return edits[kind] if kind in edits else 2 * output - output.detach()

    return Kernel(attend)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("raises", r"sdpa: RuntimeError: No available kernel. Aborting execution.\)"),
        ("shifted", "its outputs differ from the formula's by 1"),
        ("scaled", "its outputs differ from the formula's by 0.1 of their norm"),
        ("nan", "its outputs differ from the formula's by nan"),
        ("gradient", "its queries differ from the formula's by 1 of their norm"),
    ],
)
def test_a_kernel_that_does_not_give_the_formulas_numbers_is_refused_with_the_reason(
    kind: str, words: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(KERNELS, "sdpa", broken(kind))
    with pytest.raises(InputError, match=words) as refusal:
        find_kernel("sdpa", CPU, HEADS)
    assert "4 heads (2 key-value) of size 16" in str(refusal.value)
    assert "Set model.dtype to bfloat16, install flash-attn" in str(refusal.value)


@pytest.fixture
def pretended_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of compute capability 9.0, for the rules; what is tried on it runs on the CPU."""
    trial = attention_kernels._try
    monkeypatch.setattr(attention_kernels, "_try", lambda kernel, _, heads: trial(kernel, CPU, heads))
    monkeypatch.setattr(attention_kernels, "_device_name", lambda _: "a GPU")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))


@pytest.mark.usefixtures("pretended_gpu")
def test_auto_takes_the_first_kernel_that_is_installed_and_works(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    heads = dataclasses.replace(HEADS, dtype=torch.bfloat16)
    for name in CHOICES:
        monkeypatch.setitem(KERNELS, name, Kernel(attend_by_formula))
    assert find_kernel("auto", CUDA, heads) == "flash_attn_4"
    for name in ("flash_attn_4", "flash_attn"):
        monkeypatch.setitem(KERNELS, name, Kernel(attend_by_formula, package="no_such_package.kernels"))
    assert find_kernel("auto", CUDA, heads) == "transformer_engine"
    monkeypatch.setitem(KERNELS, "transformer_engine", broken("scaled"))
    assert find_kernel("auto", CUDA, heads) == "torch_varlen"
    assert "transformer_engine does not work here: its outputs differ" in caplog.text
    assert "flash_attn does not work" not in caplog.text


class Route:
    """What torch keeps of an implementation of FlashAttention while its calls are routed to it."""

    def remove(self) -> None:
        pass


def no_package() -> Route:
    raise ModuleNotFoundError("No module named 'flash_attn.cute'")


@pytest.mark.usefixtures("pretended_gpu")
@pytest.mark.parametrize(
    ("attend", "register", "chosen", "routed"),
    [
        (attend_by_formula, Route, "flash_attn_4", "FA4"),
        (broken("scaled").attend, Route, "torch_varlen", None),
        (attend_by_formula, no_package, "torch_varlen", None),
    ],
)
def test_flash_attention_4_computes_torchs_calls_where_it_works_and_is_left_where_it_does_not(
    attend: Attend,
    register: Callable[[], Route],
    chosen: str,
    routed: str | None,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setitem(torch.nn.attention._registry._FLASH_ATTENTION_IMPLS, "FA4", register)
    four = dataclasses.replace(KERNELS["flash_attn_4"], attend=attend, package="torch")
    monkeypatch.setitem(KERNELS, "flash_attn_4", four)
    monkeypatch.setitem(KERNELS, "torch_varlen", Kernel(attend_by_formula))
    try:
        assert find_kernel("auto", CUDA, dataclasses.replace(HEADS, dtype=torch.bfloat16)) == chosen
        assert torch.nn.attention.current_flash_attention_impl() == routed
    finally:
        gpu_attention.route_flash_attention(None)


@pytest.mark.usefixtures("pretended_gpu")
@pytest.mark.parametrize(
    ("heads", "words"),
    [
        (HEADS, "torch_varlen: it takes 16-bit numbers only"),
        (Heads(4, 2, 320, torch.bfloat16), "torch_varlen: it takes head sizes up to 256 divisible by 8"),
    ],
)
def test_where_no_fused_kernel_is_left_the_math_kernel_is_refused(
    heads: Heads, words: str, monkeypatch: pytest.MonkeyPatch
):
    assert find_kernel("auto", CUDA, heads) == "sdpa"
    monkeypatch.setitem(KERNELS, "sdpa", broken("raises"))
    with pytest.raises(InputError, match=words) as refusal:
        find_kernel("auto", CUDA, heads)
    assert "torch's math kernel would, but it stores all scores" in str(refusal.value)


def test_the_recipe_names_these_kernels():
    names = Trainer.model_fields["attention"].annotation.__args__
    assert names == ("auto", *CHOICES)


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
