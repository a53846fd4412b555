"""The softmax over a matrix of logits and its gradient: by autograd, or row by row by one of several kernels.

The logits are a product of cuBLAS, which nothing but these kernels touches. `triton` reads each logit once
for the log-probs, and once more for the gradient, which it may write in the logits' place: with the products
14 bytes of traffic per 16-bit logit. `torch` takes a pass per operation, some 70 bytes. `find_kernel` tries
them against the formula once, when a model is built.
The gradient of the output layer's weight is summed up over chunks of tokens. On CUDA the products are added,
unrounded, to the float32 gradient that Megatron sums over micro-batches, as its own fused layers do: there is
no second matrix of this size, and each chunk costs one pass over it.

Shapes: t rows, W columns of this rank, E kept ids of these rows; of a weight W rows, R of them with a
gradient, H hidden size.
"""

import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from asyncrl.trainer.packing.columns import PredictionTerm
from asyncrl.trainer.packing.trials import find_fault, is_installed

log = logging.getLogger(__name__)

IMPOSSIBLE = -1e30
"""A logit of this size has a probability of exactly 0. Unlike -inf, 0 times it is no NaN."""


def token_logprobs(
    logits: Tensor,
    targets: Tensor,
    temperature: float,
    unsampled: Tensor | None = None,
    terms: Sequence[PredictionTerm] = (),
    cap: float | None = None,
) -> tuple[Tensor, ...]:
    """[T, V], [T] -> float32 natural log-probs of the targets [T], entropies [T], and the output of each term
    [T]; all with gradient.

    `unsampled` [U] int64 are ids that are never sampled; no target is one of them. `cap` is the c of logits
    c tanh(logit / c).
    """
    if cap is not None:
        logits = cap * torch.tanh(logits.float() / cap)
    logits = logits.float() / temperature
    if unsampled is not None:
        logits = logits.index_fill(-1, unsampled, IMPOSSIBLE)
    everything = torch.log_softmax(logits, dim=-1)
    all_of_them = slice(0, len(targets))
    return (
        everything.gather(-1, targets[:, None]).squeeze(-1),
        _Entropy.apply(everything),
        *(term.value(everything[term.places(all_of_them)], all_of_them, _alone) for term in terms),
    )


def _alone(values: Tensor, operation: object = None) -> Tensor:
    """No other rank has a part of the vocabulary."""
    return values


class _Entropy(torch.autograd.Function):
    """-sum p log p of log-probs [T, V]; keeps only its input, which log_softmax keeps anyway."""

    @staticmethod
    def forward(context: Any, logprobs: Tensor) -> Tensor:
        context.save_for_backward(logprobs)
        entropies: Tensor = torch.special.entr(logprobs.exp()).sum(-1)
        return entropies

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        (logprobs,) = context.saved_tensors
        probabilities = logprobs.exp()
        # An impossible token adds nothing; 0 x -inf would be NaN.
        slopes = torch.where(probabilities > 0, probabilities * (logprobs + 1), 0.0)
        return -gradient[:, None] * slopes


TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 1e-2, torch.float16: 2e-3}
"""Norm of a difference from the formula, relative, by the type that gradients are rounded to."""


@dataclass(frozen=True, slots=True)
class Tempering:
    """From the logits to the numbers whose softmax is sampled from."""

    temperature: float = 1.0
    cap: float | None = None
    """The c of logits c tanh(logit / c)."""
    unsampled: Tensor | None = None
    """[U] int64, columns that are never sampled."""

    def of(self, logits: Tensor) -> Tensor:
        """A float32 copy of `logits`, capped and divided by the temperature."""
        if self.cap is not None:
            copy = logits.to(torch.float32, copy=True).div_(self.cap).tanh_().mul_(self.cap)
            return copy if self.temperature == 1.0 else copy.div_(self.temperature)
        if self.temperature == 1.0:
            return logits.to(torch.float32, copy=True)
        if not converts_as_it_computes(logits):
            return logits.to(torch.float32, copy=True).div_(self.temperature)
        # By a float32 row and no number, so that 16-bit logits become float32 before they are divided.
        return torch.div(logits, logits.new_full((1,), self.temperature, dtype=torch.float32))

    def without_unsampled(self, tempered: Tensor) -> Tensor:
        return tempered if self.unsampled is None else tempered.index_fill_(1, self.unsampled, IMPOSSIBLE)


@dataclass(frozen=True, slots=True)
class Slopes:
    """Parts of the gradient of a matrix of logits. In the tempered logits x, with log-probs l = x - n, it is
    -p (a + h (l + H)), and b more at the target."""

    normalisers: Tensor
    """n, [t] float32."""
    entropies: Tensor
    """H, [t] float32."""
    columns: Tensor
    """[t] int64, the target of each row; any column where another rank has it, whose b is 0."""
    of_targets: Tensor
    """b, [t] float32."""
    of_all: Tensor
    """a, [t] float32."""
    of_entropies: Tensor | None = None
    """h, [t] float32; None where entropies have no gradient."""
    sparse: tuple[Tensor, Tensor, Tensor] | None = None
    """(rows, columns, gradients float32), [E] each, to be added. `torch` adds those of the same place too;
    `triton` knows no equal places."""


Sums = tuple[Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class Kernel:
    sums: Callable[[Tensor, Tensor, Tempering], Sums]
    """(logits [t, W], columns [t], tempering) -> the largest tempered logit x_max, sum e^(x - x_max), sum
    (x - x_max) e^(x - x_max), and x - x_max of the column, [t] float32 each. May write into the columns of
    `logits` that are never sampled."""
    fill: Callable[[Tensor, Tensor, Slopes, Tempering], None]
    """(logits [t, W], out [t, W], slopes, tempering): fills `out` with the gradient of the logits. It may be
    `logits` itself; else these are lost all the same."""
    package: str = "torch"


def converts_as_it_computes(tensor: Tensor) -> bool:
    """Whether reading or writing these numbers as float32 takes no pass of its own; on a CPU it takes longer
    than one."""
    return tensor.is_cuda or tensor.dtype is torch.float32


def torch_sums(logits: Tensor, columns: Tensor, tempering: Tempering) -> Sums:
    largest = _largest(logits, tempering)
    shifted = _shifted(logits, largest, tempering)
    chosen = shifted.gather(1, columns[:, None]).squeeze(1)
    exponentials = shifted.exp()
    return largest, exponentials.sum(-1), shifted.mul_(exponentials).sum(-1), chosen


def torch_fill(logits: Tensor, out: Tensor, slopes: Slopes, tempering: Tempering) -> None:
    found = _dense(_shifted(logits, slopes.normalisers, tempering), slopes)
    found.scatter_add_(1, slopes.columns[:, None], slopes.of_targets[:, None])
    if slopes.sparse is not None:
        rows, columns, gradients = slopes.sparse
        found.index_put_((rows, columns), gradients, accumulate=True)
    _untempered(found, logits, out, tempering)


def _shifted(logits: Tensor, less: Tensor, tempering: Tempering) -> Tensor:
    """[t, W] float32: the tempered logits, less a number of each row, in one pass where there is no other."""
    if tempering.cap is None and tempering.temperature == 1.0 and converts_as_it_computes(logits):
        return tempering.without_unsampled(torch.sub(logits, less[:, None]))
    return tempering.without_unsampled(tempering.of(logits).sub_(less[:, None]))


def _largest(logits: Tensor, tempering: Tempering) -> Tensor:
    """[t] largest of the tempered logits of each row. Dividing keeps their order, so it comes after."""
    if tempering.cap is not None:
        return tempering.without_unsampled(tempering.of(logits)).amax(-1)
    if tempering.unsampled is None:
        return tempering.of(logits.amax(-1))
    kept = logits.index_select(1, tempering.unsampled)
    lowest = logits.index_fill_(1, tempering.unsampled, torch.finfo(logits.dtype).min).amax(-1)
    logits.index_copy_(1, tempering.unsampled, kept)
    # A rank may have nothing that is sampled.
    return tempering.of(lowest).clamp_(min=IMPOSSIBLE)


def _dense(logprobs: Tensor, slopes: Slopes) -> Tensor:
    """-p (a + h (l + H)) from l [t, W], which it overwrites."""
    if slopes.of_entropies is None:
        return logprobs.exp_().mul_(-slopes.of_all[:, None])
    probabilities = logprobs.exp()
    factor = logprobs.add_(slopes.entropies[:, None]).mul_(-slopes.of_entropies[:, None])
    return probabilities.mul_(factor.sub_(slopes.of_all[:, None]))


def _untempered(slopes: Tensor, logits: Tensor, out: Tensor, tempering: Tempering) -> None:
    """Fills `out` with the gradient of `logits` from that of the tempered ones, which it overwrites."""
    if tempering.cap is not None:
        slopes = slopes if tempering.temperature == 1.0 else slopes.div_(tempering.temperature)
        out.copy_(slopes.mul_(1 - (logits.float() / tempering.cap).tanh_().square_()))
    elif tempering.temperature == 1.0:
        out.copy_(slopes)
    elif converts_as_it_computes(out):
        torch.div(slopes, tempering.temperature, out=out)
    else:
        out.copy_(slopes.div_(tempering.temperature))


def triton_sums(logits: Tensor, columns: Tensor, tempering: Tempering) -> Sums:
    from asyncrl.trainer.packing import triton_kernels

    if tempering.unsampled is not None:
        logits.index_fill_(1, tempering.unsampled, -torch.inf)
    return triton_kernels.sums(logits, columns, tempering.temperature, tempering.cap)


def triton_fill(logits: Tensor, out: Tensor, slopes: Slopes, tempering: Tempering) -> None:
    from asyncrl.trainer.packing import triton_kernels

    exact = None if slopes.sparse is None else _exact(logits, slopes, slopes.sparse, tempering)
    if tempering.unsampled is not None:
        logits.index_fill_(1, tempering.unsampled, -torch.inf)
    rows = (slopes.normalisers, slopes.entropies, slopes.columns, slopes.of_targets, slopes.of_all)
    triton_kernels.fill(logits, out, *rows, slopes.of_entropies, tempering.temperature, tempering.cap)
    if exact is not None and slopes.sparse is not None:
        out.index_put_(slopes.sparse[:2], exact.to(out.dtype))


def _exact(
    logits: Tensor, slopes: Slopes, sparse: tuple[Tensor, Tensor, Tensor], tempering: Tempering
) -> Tensor:
    """[E] the whole gradient at the places of `sparse`: the parts of a token of which the policy is sure
    cancel, and would not if one were rounded before the other is added."""
    rows, columns, gradients = sparse
    raw = logits[rows, columns]
    of_rows = Slopes(
        normalisers=slopes.normalisers[rows],
        entropies=slopes.entropies[rows],
        columns=slopes.columns[rows],
        of_targets=slopes.of_targets[rows],
        of_all=slopes.of_all[rows],
        of_entropies=None if slopes.of_entropies is None else slopes.of_entropies[rows],
    )
    found = _dense((tempering.of(raw) - of_rows.normalisers)[:, None], of_rows).squeeze(1) + gradients
    found += torch.where(columns == of_rows.columns, of_rows.of_targets, 0.0)
    whole = torch.empty_like(found)
    _untempered(found, raw, whole, tempering)
    return whole


KERNELS = {
    "triton": Kernel(triton_sums, triton_fill, package="triton"),
    "torch": Kernel(torch_sums, torch_fill),
}
"""By name, in the order in which they are tried on a GPU."""


@functools.cache
def find_kernel(device: torch.device, dtype: torch.dtype) -> str:
    """The kernel of KERNELS for logits whose gradient is rounded to `dtype`: on a CPU torch, on a GPU the
    first that works."""
    if device.type == "cpu":
        return "torch"
    for name, kernel in KERNELS.items():
        if not is_installed(kernel.package):
            continue
        fault = try_kernel(kernel, device, dtype)
        if fault is None:
            log.info("output layer by %s", name)
            return name
        log.warning("output layer: %s does not work here: %s", name, fault)
    # Made of torch's own operations: if these were wrong, so would be everything.
    return "torch"


def try_kernel(kernel: Kernel, device: torch.device, dtype: torch.dtype) -> str | None:
    """Compares the kernel with autograd on a small input; returns the defect, or None."""
    generator = torch.Generator().manual_seed(0)
    t, width, temperature, cap = 13, 5003, 0.7, 8.0
    logits = (3 * torch.randn(t, width, generator=generator)).to(device, dtype)
    targets = torch.randint(10, width, (t,), generator=generator).to(device)
    of_logprobs, of_entropies = torch.randn(2, t, generator=generator).to(device)
    unsampled = torch.tensor([2, 7], device=device)
    exact = logits.to(torch.float32, copy=True).requires_grad_()
    with torch.enable_grad():
        logprobs, entropies = token_logprobs(exact, targets, temperature, unsampled, cap=cap)[:2]
        total = (logprobs * of_logprobs).sum() + (entropies * of_entropies).sum()
        (gradient,) = torch.autograd.grad(total, exact)
    tempering = Tempering(temperature, cap, unsampled)

    def compute() -> list[Tensor]:
        largest, sums, weighted, chosen = kernel.sums(logits, targets, tempering)
        found = [chosen - sums.log(), sums.log() - weighted / sums]
        slopes = Slopes(largest + sums.log(), found[1], targets, of_logprobs, of_logprobs, of_entropies)
        kernel.fill(logits, logits, slopes, tempering)
        return [*found, logits]

    expected = {"log-probs": logprobs, "entropies": entropies, "gradients": gradient}
    return find_fault(compute, expected, TOLERANCES[dtype])


ADDING = ("cuda",)
"""Types of devices that add a product of 16-bit matrices to a float32 one."""


class WeightGradient:
    """The sum of one backward pass."""

    def __init__(self, weight: Tensor, num_rows: int, num_chunks: int) -> None:
        """`num_rows` is R; rows behind them get zeros."""
        self._weight = weight
        self._main = _main_gradient(weight)
        # The product of a single chunk is the gradient; those of several are added up in float32.
        self._is_sum = num_chunks != 1 or self._main is not None
        if self._main is not None:
            self._whole = self._main
        else:
            self._whole = torch.empty_like(weight, dtype=torch.float32 if self._is_sum else None)
            self._whole[0 if self._is_sum else num_rows :] = 0
        self._rows = self._whole[:num_rows]

    def add(self, slopes: Tensor, hidden: Tensor) -> None:
        """The part of a chunk: slopes [t, R] of its logits, and hidden [t, H]."""
        if not self._is_sum:
            torch.mm(slopes.t(), hidden, out=self._rows)
        elif slopes.is_cuda:
            into = self._rows
            if slopes.dtype is torch.float32:
                into.addmm_(slopes.t(), hidden)
            else:
                torch.addmm(into, slopes.t(), hidden, out_dtype=torch.float32, out=into)
        else:
            self._rows += slopes.t() @ hidden

    def result(self) -> Tensor:
        """[W, H], for autograd: a stand-in where Megatron has the gradient already, which it leaves unread
        or, under `zero_out_wgrad`, adds."""
        if self._main is None:
            return self._whole.to(self._weight.dtype)
        self._weight.grad_added_to_main_grad = True  # type: ignore[attr-defined]
        if getattr(self._weight, "zero_out_wgrad", False):
            return torch.zeros_like(self._weight)
        return torch.empty_like(self._weight)


def _main_gradient(weight: Tensor) -> Tensor | None:
    """The matrix that Megatron's DistributedDataParallel sums this weight's gradient in; None where products
    are not added to it."""
    main: Tensor | None = getattr(weight, "main_grad", None)
    if main is None or main.dtype is not torch.float32 or weight.device.type not in ADDING:
        return None
    return main if hasattr(weight, "grad_added_to_main_grad") else None
