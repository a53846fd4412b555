"""Kernels of the output layer against float64, those of Triton under its interpreter; how one is chosen;
passes over the logits, and the sum of the weight's gradient."""

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

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


def leaves(dtype: torch.dtype) -> tuple[Tensor, torch.nn.Parameter, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(11, 6, generator=generator).to(dtype).requires_grad_()
    weight = torch.nn.Parameter(torch.randn(19, 6, generator=generator).to(dtype))
    return hidden, weight, torch.randint(0, 17, (11,), generator=generator)


def with_main_gradient(weight: torch.nn.Parameter) -> Tensor:
    """As Megatron's DistributedDataParallel makes it, with something in it from an earlier micro-batch."""
    weight.main_grad = torch.full((19, 6), 0.5)
    weight.grad_added_to_main_grad = False
    return weight.main_grad


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logprobs_module, "LOGITS_AT_ONCE", 40)


@pytest.mark.parametrize("logits_at_once", [40, 2**26])
def test_products_are_added_to_the_gradient_of_earlier_micro_batches(
    logits_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logprobs_module, "LOGITS_AT_ONCE", logits_at_once)
    hidden, weight, targets = leaves(torch.bfloat16)
    values = output_logprobs(hidden, weight, targets, 0.7, vocab_size=17)
    wanted_hidden, wanted = torch.autograd.grad(values[0].sum(), (hidden, weight))
    main = with_main_gradient(weight)
    monkeypatch.setattr(output_kernels, "ADDING", ("cpu",))
    output_logprobs(hidden, weight, targets, 0.7, vocab_size=17)[0].sum().backward()
    assert weight.grad_added_to_main_grad
    assert (main[:17] - 0.5 - wanted[:17].float()).abs().max() < 0.02 * wanted.abs().max()
    # Padding of the vocabulary keeps what it had.
    assert main[17:].eq(0.5).all()
    assert torch.equal(hidden.grad, wanted_hidden)
    # Megatron leaves the stand-in unread.
    assert weight.grad is not None and weight.grad.shape == weight.shape


@pytest.mark.usefixtures("small_chunks")
def test_a_tied_weight_gets_a_stand_in_of_zeros_which_megatron_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_kernels, "ADDING", ("cpu",))
    hidden, weight, targets = leaves(torch.float32)
    with_main_gradient(weight)
    weight.zero_out_wgrad = True
    output_logprobs(hidden, weight, targets, 1.0, vocab_size=19)[0].sum().backward()
    assert weight.grad.eq(0).all()


@pytest.mark.usefixtures("small_chunks")
def test_on_a_cpu_and_without_megatrons_gradient_autograd_gets_it() -> None:
    hidden, weight, targets = leaves(torch.float32)
    main = with_main_gradient(weight)
    output_logprobs(hidden, weight, targets, 1.0, vocab_size=17)[0].sum().backward()
    assert main.eq(0.5).all() and not weight.grad_added_to_main_grad and weight.grad.ne(0).any()


TOKENS, VOCABULARY = 40, 300
VIEWS = ("view", "slice", "select", "t", "transpose", "detach", "alias", "expand", "unsqueeze")
CREATIONS = ("empty_like", "new_full")
PRODUCTS = ("mm", "addmm", "linear", "matmul")
COLUMNS = ("index_fill_", "scatter_add_", "gather", "index_select", "index_copy_")
"""They touch some columns of each row."""


class Passes(TorchDispatchMode):
    """Names of operations that read or write a whole matrix of logits, but products."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        tensors = [x for x in tree_leaves((args, kwargs, result)) if isinstance(x, torch.Tensor)]
        if name not in VIEWS + CREATIONS + PRODUCTS + COLUMNS and any(
            x.numel() == TOKENS * VOCABULARY for x in tensors
        ):
            self.names.append(name)
        return result


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one chunk and one slice, and 16-bit numbers are converted as they are read."""
    monkeypatch.setattr(output_kernels, "converts_as_it_computes", lambda tensor: True)
    monkeypatch.setattr(logprobs_module, "SLICE_LOGITS", TOKENS * VOCABULARY)


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("unsampled", [None, torch.tensor([3, 7])])
@pytest.mark.parametrize(
    ("temperature", "has_entropy", "forward", "backward"),
    [
        # The largest, less it, exponentials, their sum, times the logits, and that sum.
        (1.0, False, ["amax", "sub", "exp", "sum", "mul_", "sum"], ["sub", "exp_", "mul_", "copy_"]),
        (
            0.7,
            False,
            ["amax", "div", "sub_", "exp", "sum", "mul_", "sum"],
            # Tempered again, and rounded as it is written.
            ["div", "sub_", "exp_", "mul_", "div"],
        ),
        (
            1.0,
            True,
            ["amax", "sub", "exp", "sum", "mul_", "sum"],
            ["sub", "exp", "add_", "mul_", "sub_", "mul_", "copy_"],
        ),
    ],
)
def test_each_pass_over_the_logits_is_needed(
    unsampled: torch.Tensor | None,
    temperature: float,
    has_entropy: bool,
    forward: list[str],
    backward: list[str],
) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(TOKENS, 8, generator=generator).bfloat16().requires_grad_()
    weight = torch.randn(VOCABULARY, 8, generator=generator).bfloat16().requires_grad_()
    targets = torch.randint(10, VOCABULARY, (TOKENS,), generator=generator)
    with Passes() as there:
        values = output_logprobs(
            hidden, weight, targets, temperature, vocab_size=VOCABULARY, unsampled=unsampled
        )
    assert there.names == forward
    total = values[0].sum() + values[1].sum() if has_entropy else values[0].sum()
    with Passes() as back:
        total.backward()
    assert back.names == backward
