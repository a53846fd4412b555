"""Kernels of the output layer against float64, those of Triton under its interpreter; how one is chosen."""

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import asyncrl.trainer.network.logprobs as logprobs_module
from asyncrl.trainer.network import output_kernels
from asyncrl.trainer.network.logprobs import output_logprobs
from asyncrl.trainer.network.output_kernels import KERNELS, Slopes, Tempering, find_kernel, try_kernel
from asyncrl.trainer.packing.terms import KeptSets

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
UNSAMPLED = torch.tensor([0, 7, 301])


@pytest.fixture(params=["torch", "triton"])
def kernel(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "triton":
        pytest.importorskip("triton", reason="make setup TRITON=1")
    yield request.param


def exact(logits: Tensor, tempering: Tempering) -> Tensor:
    """Log-probs [t, W] in float64."""
    logits = logits.double()
    if tempering.cap is not None:
        logits = tempering.cap * torch.tanh(logits / tempering.cap)
    logits = logits / tempering.temperature
    if tempering.unsampled is not None:
        logits = logits.index_fill(1, tempering.unsampled, -1e30)
    return torch.log_softmax(logits, -1)


def assert_near(found: Tensor, wanted: Tensor, relative: float) -> None:
    assert found.isfinite().all()
    assert (found.double() - wanted).norm() <= relative * wanted.norm() + 1e-9


TEMPERINGS = [
    Tempering(),
    Tempering(0.6),
    Tempering(1.3, cap=4.0),
    Tempering(unsampled=UNSAMPLED),
    Tempering(0.8, 15.0, UNSAMPLED),
]


@pytest.mark.parametrize(
    ("width", "dtype", "tempering"),
    # Qwen's vocabulary in shards of 8, fewer columns than a program holds, and DeepSeek's vocabulary whole.
    [
        *((18_992, torch.bfloat16, tempering) for tempering in TEMPERINGS),
        *((400, torch.float16, tempering) for tempering in TEMPERINGS),
        (129_280, torch.float32, TEMPERINGS[-1]),
    ],
)
def test_sums_and_gradients_are_those_of_float64(
    kernel: str, width: int, dtype: torch.dtype, tempering: Tempering
) -> None:
    generator = torch.Generator().manual_seed(width)
    logits = (4 * torch.randn(5, width, generator=generator)).to(dtype)
    # One token of which the policy is sure.
    logits[1, 11] = 40.0
    targets = torch.tensor([1, 11, width - 1, 5, 8])
    of_logprobs, of_entropies = torch.randn(2, 5, generator=generator)
    leaf = logits.double().requires_grad_()
    everything = exact(leaf, tempering)
    chosen = everything[torch.arange(5), targets]
    entropies = -(everything.exp() * everything).sum(-1)
    (slopes,) = torch.autograd.grad((chosen * of_logprobs + entropies * of_entropies).sum(), leaf)

    largest, total, weighted, shifted = KERNELS[kernel].sums(logits, targets, tempering)
    assert_near(shifted - total.log(), chosen, 1e-5)
    assert_near(total.log() - weighted / total, entropies, 1e-5)
    rows = Slopes(
        largest + total.log(), entropies.detach().float(), targets, of_logprobs, of_logprobs, of_entropies
    )
    KERNELS[kernel].fill(logits, logits, rows, tempering)
    # Rounded once.
    assert_near(logits, slopes, 1.5 * torch.finfo(dtype).eps + 1e-5)
    if tempering.unsampled is not None:
        assert logits[:, tempering.unsampled].eq(0).all()


def problem(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, KeptSets]:
    """Hidden states, weights, targets and the sets that these were sampled from, 8 ids each."""
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(11, 16, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(403, 16, generator=generator).to(dtype).requires_grad_()
    sets = torch.stack([8 + torch.randperm(290, generator=generator)[:8] for _ in range(11)])
    rows = torch.arange(11).repeat_interleave(8)
    return hidden, weight, sets[:, 3].contiguous(), KeptSets.of(rows, sets.flatten(), 11)


@pytest.mark.parametrize("is_kept", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kept_bytes", [0, 2**29])
def test_the_output_layer_has_the_gradient_of_the_formula(
    kernel: str, dtype: torch.dtype, is_kept: bool, kept_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logprobs_module, "LOGITS_AT_ONCE", 2000)
    monkeypatch.setattr(logprobs_module, "KEPT_BYTES", kept_bytes)
    hidden, weight, targets, kept = problem(dtype)
    tempering = Tempering(0.7, 20.0, UNSAMPLED)
    found = output_logprobs(
        *(hidden, weight, targets, tempering.temperature),
        vocab_size=400,
        unsampled=UNSAMPLED,
        cap=tempering.cap,
        terms=[kept] if is_kept else [],
        kernel=kernel,
    )
    leaves = [each.detach().double().requires_grad_() for each in (hidden, weight)]
    # As the product rounds them.
    products = leaves[0] @ leaves[1][:400].t()
    rounded = torch.nn.functional.linear(hidden, weight[:400]).double().detach()
    everything = exact(products + (rounded - products.detach()), tempering)
    wanted = [everything[torch.arange(11), targets], -(everything.exp() * everything).sum(-1)]
    if is_kept:
        wanted.append(everything[kept.rows, kept.tokens].view(11, 8).logsumexp(-1))
    weights = torch.linspace(-1, 1, 11)
    totals = []
    for values in (found, wanted):
        # As a step has it: over the kept tokens, and some entropy.
        logprobs = values[0] - values[2] if is_kept else values[0]
        totals.append((weights * logprobs).sum() + 0.1 * (weights.flip(0) * values[1]).sum())
    for got, right in zip(found, wanted, strict=True):
        assert_near(got, right.detach(), 1e-5)
    slopes = torch.autograd.grad(totals[0], (hidden, weight))
    for got, right in zip(slopes, torch.autograd.grad(totals[1], leaves), strict=True):
        assert_near(got, right, 1e-5 if dtype is torch.float32 else 1e-2)


def test_a_token_of_which_the_policy_is_sure_keeps_its_small_gradient(kernel: str) -> None:
    # 1 - p is a thousandth: parts of +1 and -p that are rounded to bfloat16 one by one would leave nothing.
    logits = torch.tensor([[math.log(999.0), 0.0, -50.0, -50.0]], dtype=torch.bfloat16)
    p = torch.softmax(logits.double(), -1)
    largest, total, *_ = KERNELS[kernel].sums(logits, torch.tensor([0]), Tempering())
    one, zero = torch.ones(1), torch.zeros(1)
    places = (torch.tensor([0, 0]), torch.tensor([0, 1]), -p[0, :2].float())
    rows = Slopes(largest + total.log(), zero, torch.tensor([0]), one, zero, None, places)
    KERNELS[kernel].fill(logits, logits, rows, Tempering())
    assert logits[0, 0].item() == pytest.approx(1 - p[0, 0].item(), rel=1e-2)
    assert logits[0, 1].item() == pytest.approx(-p[0, 1].item(), rel=1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_kernels_pass_their_trial_and_a_wrong_one_does_not(kernel: str, dtype: torch.dtype) -> None:
    assert try_kernel(KERNELS[kernel], CPU, dtype) is None

    def doubled(logits: Tensor, out: Tensor, slopes: Slopes, tempering: Tempering) -> None:
        KERNELS[kernel].fill(logits, out, slopes, tempering)
        out.mul_(2)

    broken = output_kernels.Kernel(KERNELS[kernel].sums, doubled)
    assert (try_kernel(broken, CPU, dtype) or "").startswith("its gradients differ from the formula's by ")


def test_on_a_gpu_the_first_that_is_installed_and_works_is_taken(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    trial, plain = try_kernel, KERNELS["torch"]
    monkeypatch.setattr(output_kernels, "try_kernel", lambda kernel, _, dtype: trial(kernel, CPU, dtype))

    def found(**kernel: object) -> str:
        find_kernel.cache_clear()
        fields = {"sums": plain.sums, "fill": plain.fill, "package": "torch"} | kernel
        monkeypatch.setitem(KERNELS, "triton", output_kernels.Kernel(**fields))
        return find_kernel(CUDA, torch.bfloat16)

    def raising(*_: object) -> None:
        raise RuntimeError("no kernel image\nmore")

    assert found() == "triton" and found(package="no_such_package") == "torch"
    assert caplog.text == ""
    assert found(fill=raising) == "torch"
    assert "triton does not work here: RuntimeError: no kernel image" in caplog.text
    find_kernel.cache_clear()
    assert find_kernel(CPU, torch.bfloat16) == "torch"
