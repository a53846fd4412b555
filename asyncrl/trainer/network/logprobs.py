"""Log-probs and entropies of the distribution that tokens are sampled from: softmax(logits / temperature)
over all tokens but those that servers never sample (asyncrl/model/unsampled.py). These have no probability
and their logits no gradient.

Terms (`columns.PredictionTerm`) add an output each, of the log-probs at their places alone, whatever rank
holds them.

A small float32 product of tokens and vocabulary is computed at once. Any other, and any vocabulary that
tensor-parallel ranks share, is computed in chunks of tokens from the last hidden states, LOGITS_AT_ONCE
logits at a time (on a GPU GPU_LOGITS_AT_ONCE), and on a CPU normalized in slices that stay in the processor's
cache. The backward pass finds logits that fit into KEPT_BYTES as they were; of more it computes each chunk
again, one more product of the output layer. It then holds at most three float32 matrices of a chunk on each
rank, whatever the number of tokens, and sums the gradient of the weight in float32: in Megatron's on a GPU,
else in 4 bytes x W x H, and a product of that size (`WeightGradient`).

Memory bounds what is done to a chunk, by the kernels of output_kernels.py; their gradient takes its place.

With model.float32_logits the logits of a bfloat16 model are not rounded: products of bfloat16 numbers, summed
up in float32, as SGLang's --enable-fp32-lm-head computes them. Their gradient is rounded as before, where it
meets the weights.

Shapes: T response tokens, V vocabulary, W rows of the output layer on this rank, H hidden size, E places of
terms.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from asyncrl.model.memory import GPU_LOGITS_AT_ONCE, LOGITS_AT_ONCE
from asyncrl.serving.kernels import bitwise as kernels
from asyncrl.trainer.network.output_kernels import (
    KERNELS,
    Kernel,
    Slopes,
    Tempering,
    WeightGradient,
    token_logprobs,
)
from asyncrl.trainer.packing.columns import PredictionTerm

KEPT_BYTES = 2**29
"""Limit on logits that wait for the backward pass; bfloat16 ones lose nothing by it."""
SLICE_LOGITS = 2**18
"""In float32 1 MiB: the dozen passes over a slice stay in a core's cache."""


def output_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    temperature: float,
    *,
    vocab_size: int,
    unsampled: Tensor | None = None,
    group: dist.ProcessGroup | None = None,
    float32_logits: bool = False,
    is_bitwise: bool = False,
    terms: Sequence[PredictionTerm] = (),
    cap: float | None = None,
    kernel: str = "torch",
) -> tuple[Tensor, ...]:
    """`token_logprobs` of the logits hidden [T, H] @ weight [W, H]^T; ranks of `group` hold a part of V each.

    Every rank of the group gets all log-probs; its gradient of `hidden` is that of its own rows, to be summed
    over the group. Rows of `weight` past the vocabulary are padding: no part of the softmax, gradient zero.
    `unsampled` are columns of this rank; `kernel` is one of `output_kernels.KERNELS`.
    """
    num_ranks, rank = (1, 0) if group is None else (group.size(), group.rank())
    first = rank * len(weight)
    num_rows = min(len(weight), vocab_size - first)
    assert num_rows > 0, f"rank {rank} has only padding of a vocabulary of {vocab_size}"
    is_whole = num_ranks == 1 and num_rows == len(weight) and hidden.dtype is torch.float32
    if is_whole and not is_bitwise and len(hidden) * num_rows <= LOGITS_AT_ONCE:
        logits = torch.nn.functional.linear(hidden, weight)
        return token_logprobs(logits, targets, temperature, unsampled, terms, cap)
    # Of places that repeat, one kernel alone adds up the gradients.
    name = "torch" if any(term.repeats for term in terms) else kernel
    vocabulary = _Vocabulary(
        first,
        num_rows,
        Tempering(temperature, cap, unsampled),
        group if num_ranks > 1 else None,
        torch.float32 if float32_logits else hidden.dtype,
        KERNELS[name],
        tuple(term if num_ranks == 1 else term.of_columns(first, num_rows) for term in terms),
        is_bitwise,
    )
    values: tuple[Tensor, ...] = _ChunkedLogprobs.apply(hidden, weight, targets, vocabulary)
    return values


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    """The rows of the output layer that this rank holds, and what is done over all of them."""

    first: int
    num_rows: int
    tempering: Tempering
    """Its columns are this rank's, as those of `terms` are."""
    group: dist.ProcessGroup | None
    dtype: torch.dtype
    """The logits'."""
    kernel: Kernel
    terms: tuple[PredictionTerm, ...] = ()
    is_bitwise: bool = False

    def chunks(self, hidden: Tensor) -> list[slice]:
        """Tokens of one product."""
        at_once = GPU_LOGITS_AT_ONCE if hidden.is_cuda else LOGITS_AT_ONCE
        return _slices(len(hidden), at_once // self.num_rows)

    def slices(self, logits: Tensor) -> list[slice]:
        """Rows of a product that are normalized together: one message per product over a group."""
        is_sliced = self.group is None and logits.device.type == "cpu"
        return _slices(len(logits), SLICE_LOGITS // self.num_rows if is_sliced else len(logits))

    def logits(self, hidden: Tensor, weight: Tensor) -> Tensor:
        """[t, H] -> [t, num_rows]."""
        weight = weight[: self.num_rows]
        if self.is_bitwise:
            return kernels.linear(hidden.to(self.dtype), weight.to(self.dtype))
        if hidden.dtype is self.dtype:
            return torch.nn.functional.linear(hidden, weight)
        if hidden.is_cuda:
            return torch.mm(hidden, weight.t(), out_dtype=self.dtype)
        return torch.nn.functional.linear(hidden.to(self.dtype), weight.to(self.dtype))

    def shared_logprobs(self, logits: Tensor, targets: Tensor) -> Tensor:
        """[t], computed as servers do."""
        if self.tempering.unsampled is not None:
            logits = logits.index_fill(1, self.tempering.unsampled, -torch.inf)
        temperatures = torch.full((len(logits), 1), self.tempering.temperature)
        return kernels.token_logprobs(logits, temperatures, targets)

    def own(self, targets: Tensor) -> tuple[Tensor, Tensor]:
        """(column of each target here, whether it is one of ours)."""
        columns = targets - self.first
        return columns.clamp(0, self.num_rows - 1), (columns >= 0) & (columns < self.num_rows)

    def logs_of(
        self, term: PredictionTerm, logits: Tensor, part: slice, normalisers: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """([E] rows, [E] columns, [E] log-probs there) of the predictions `part`, whose logits [t, num_rows]
        and logarithms of the softmax's denominator [t] are known."""
        rows, columns = term.places(part)
        return rows, columns, self.tempering.of(logits[rows, columns]) - normalisers[rows]

    def reduce(self, tensor: Tensor, operation: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> Tensor:
        if self.group is not None:
            dist.all_reduce(tensor, op=operation, group=self.group)
        return tensor


def _slices(length: int, size: int) -> list[slice]:
    return [slice(a, min(a + size, length)) for size in [max(1, size)] for a in range(0, length, size)]


class _ChunkedLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, hidden: Tensor, weight: Tensor, targets: Tensor, vocabulary: _Vocabulary
    ) -> tuple[Tensor, ...]:
        normalisers = torch.empty(len(hidden), dtype=torch.float32, device=hidden.device)
        logprobs, entropies = torch.empty_like(normalisers), torch.empty_like(normalisers)
        of_terms = [torch.empty_like(normalisers) for _ in vocabulary.terms]
        num_bytes = len(hidden) * vocabulary.num_rows * vocabulary.dtype.itemsize
        is_kept = any(context.needs_input_grad) and num_bytes <= KEPT_BYTES
        kept = []
        for chunk in vocabulary.chunks(hidden):
            logits = vocabulary.logits(hidden[chunk], weight)
            parts = (logprobs[chunk], entropies[chunk], normalisers[chunk], targets[chunk])
            for rows in vocabulary.slices(logits):
                *found, own = (part[rows] for part in parts)
                for place, value in zip(found, _values(logits[rows], own, vocabulary), strict=True):
                    place.copy_(value)
                part = slice(chunk.start + rows.start, chunk.start + rows.stop)
                for term, output in zip(vocabulary.terms, of_terms, strict=True):
                    *_, logs = vocabulary.logs_of(term, logits[rows], part, normalisers[part])
                    output[part] = term.value(logs, part, vocabulary.reduce)
            if is_kept:
                kept.append(logits)
        context.save_for_backward(hidden, weight, targets, normalisers, entropies, *of_terms, *kept)
        context.vocabulary = vocabulary
        context.set_materialize_grads(False)
        return logprobs, entropies, *of_terms

    @staticmethod
    def backward(
        context: Any, of_logprobs: Tensor | None, of_entropies: Tensor | None, *of_terms: Tensor | None
    ) -> tuple[Tensor, Tensor | None, None, None]:
        hidden, weight, targets, normalisers, entropies, *kept = context.saved_tensors
        vocabulary = context.vocabulary
        known = [(term, kept.pop(0)) for term in vocabulary.terms]
        zeros = torch.zeros_like(normalisers)
        of_logprobs = zeros if of_logprobs is None else of_logprobs
        of_all = of_logprobs
        terms = [(*own, each) for own, each in zip(known, of_terms, strict=True) if each is not None]
        for term, _, gradients in terms:
            of_all = of_all + term.over_all(gradients)
        to_hidden = torch.empty_like(hidden)
        chunks = vocabulary.chunks(hidden)
        of_weight = None
        if context.needs_input_grad[1]:
            of_weight = WeightGradient(weight, vocabulary.num_rows, len(chunks))
        for i, chunk in enumerate(chunks):
            logits = kept[i] if kept else vocabulary.logits(hidden[chunk], weight)
            # What was kept may be asked for once more (retain_graph).
            is_spare = not kept and logits.dtype is hidden.dtype
            slopes = logits if is_spare else torch.empty_like(logits, dtype=hidden.dtype)
            for rows in vocabulary.slices(logits):
                own = slice(chunk.start + rows.start, chunk.start + rows.stop)
                columns, is_own = vocabulary.own(targets[own])
                sparse = None
                if terms:
                    found = [_slopes(*each, own, logits[rows], normalisers, vocabulary) for each in terms]
                    at, into, added = map(torch.cat, zip(*found, strict=True))
                    sparse = at, into, added
                of_rows = Slopes(
                    *(normalisers[own], entropies[own], columns, of_logprobs[own] * is_own, of_all[own]),
                    None if of_entropies is None else of_entropies[own],
                    sparse,
                )
                vocabulary.kernel.fill(logits[rows], slopes[rows], of_rows, vocabulary.tempering)
            to_hidden[chunk] = slopes @ weight[: vocabulary.num_rows]
            if of_weight is not None:
                of_weight.add(slopes, hidden[chunk])
        return to_hidden, None if of_weight is None else of_weight.result(), None, None


# Functions of their own, so that one slice's matrices are gone before the next one's are made.
def _values(logits: Tensor, targets: Tensor, vocabulary: _Vocabulary) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probs, entropies and logarithms of the softmax's denominator of a slice, [t] each."""
    shared = vocabulary.shared_logprobs(logits, targets) if vocabulary.is_bitwise else None
    columns, is_own = vocabulary.own(targets)
    own, total, weighted, chosen = vocabulary.kernel.sums(logits, columns, vocabulary.tempering)
    largest = own
    if vocabulary.group is not None:
        largest = vocabulary.reduce(own.clone(), dist.ReduceOp.MAX)
        lower = own - largest
        shrunk = lower.exp()
        parts = (total * shrunk, (weighted + lower * total) * shrunk, (chosen + lower) * is_own)
        total, weighted, chosen = vocabulary.reduce(torch.stack(parts))
    logprobs = chosen - total.log() if shared is None else shared
    return logprobs, total.log() - weighted / total, largest + total.log()


def _slopes(
    term: PredictionTerm,
    values: Tensor,
    gradients: Tensor,
    part: slice,
    logits: Tensor,
    normalisers: Tensor,
    vocabulary: _Vocabulary,
) -> tuple[Tensor, Tensor, Tensor]:
    """(rows, columns, gradients) [E] of a term's places at the predictions `part`, but for what all tokens
    share, which is in `Slopes.of_all`."""
    rows, columns, logs = vocabulary.logs_of(term, logits, part, normalisers[part])
    return rows, columns, term.slopes(logs, part, values, gradients)
