"""Log-probs and entropies of the distribution that tokens are sampled from: softmax(logits / temperature)
over all tokens but those that servers never sample (asyncrl/model/unsampled.py). These have no probability
and their logits no gradient.

Where servers sampled from some tokens only (top-p, top-k, min-p), the log of what these have of the
probability comes beside: less it, a log-prob is that of the distribution over the kept tokens. Entropies are
over all tokens.

Where a teacher told its likeliest tokens, the mean of their log-probs by its probabilities comes beside, too:
sum_v p_T(v) ln p(v), with the gradient p_T(v) [v is one of them] - M p(v) in the tempered logits, M the sum
of these p_T. Only k logits of a row are looked at, whatever rank holds them.

A small float32 product of tokens and vocabulary is computed at once. Any other, and any vocabulary that
tensor-parallel ranks share, is computed in chunks of tokens from the last hidden states, LOGITS_AT_ONCE
logits at a time (on a GPU GPU_LOGITS_AT_ONCE), and on a CPU normalized in slices that stay in the processor's
cache. The backward pass finds logits that fit into KEPT_BYTES as they were; of more it computes each chunk
again, one more product of the output layer. It then holds at most three float32 matrices of a chunk on each
rank, whatever the number of tokens, and sums the gradient of the weight in float32: in Megatron's on a GPU,
else in 4 bytes x W x H, and a product of that size (weight_gradient.py).

Memory bounds what is done to a chunk: tests/trainer/network/test_logit_passes.py counts the passes over it.

With model.float32_logits the logits of a bfloat16 model are not rounded: products of bfloat16 numbers, summed
up in float32, as SGLang's --enable-fp32-lm-head computes them. Their gradient is rounded as before, where it
meets the weights.

Shapes: T response tokens, V vocabulary, W rows of the output layer on this rank, H hidden size, E kept ids of
all tokens.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from asyncrl.model.memory import GPU_LOGITS_AT_ONCE, LOGITS_AT_ONCE
from asyncrl.serving.kernels import rows as kernels
from asyncrl.trainer.network.weight_gradient import WeightGradient
from asyncrl.trainer.network.whole_logprobs import IMPOSSIBLE, row_maxima, token_logprobs
from asyncrl.trainer.packing.kept_sets import KeptSets, TopTokens

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
    kept: KeptSets | None = None,
    top: TopTokens | None = None,
    cap: float | None = None,
) -> tuple[Tensor, ...]:
    """`token_logprobs` of the logits hidden [T, H] @ weight [W, H]^T; ranks of `group` hold a part of V each.

    Every rank of the group gets all log-probs; its gradient of `hidden` is that of its own rows, to be summed
    over the group. Rows of `weight` past the vocabulary are padding: no part of the softmax, gradient zero.
    """
    num_ranks, rank = (1, 0) if group is None else (group.size(), group.rank())
    first = rank * len(weight)
    num_rows = min(len(weight), vocab_size - first)
    assert num_rows > 0, f"rank {rank} has only padding of a vocabulary of {vocab_size}"
    is_whole = num_ranks == 1 and num_rows == len(weight) and hidden.dtype is torch.float32
    if is_whole and not is_bitwise and len(hidden) * num_rows <= LOGITS_AT_ONCE:
        logits = torch.nn.functional.linear(hidden, weight)
        return token_logprobs(logits, targets, temperature, unsampled, kept, top, cap)
    columns = None
    if unsampled is not None:
        columns = unsampled[(unsampled >= first) & (unsampled < first + num_rows)] - first
    own = None if kept is None else kept.of_columns(first, num_rows)
    vocabulary = _Vocabulary(
        *(first, num_rows, temperature, columns),
        group if num_ranks > 1 else None,
        torch.float32 if float32_logits else hidden.dtype,
        own,
        None if top is None else (*top.of_columns(first, num_rows), top.masses()),
        is_bitwise=is_bitwise,
        cap=cap,
    )
    values: tuple[Tensor, ...] = _ChunkedLogprobs.apply(hidden, weight, targets, vocabulary)
    return values


class _Vocabulary:
    """The rows of the output layer that this rank holds, and what is done over all of them."""

    def __init__(
        self,
        first: int,
        num_rows: int,
        temperature: float,
        unsampled: Tensor | None,
        group: dist.ProcessGroup | None,
        dtype: torch.dtype,
        kept: KeptSets | None = None,
        top: tuple[Tensor, Tensor, Tensor] | None = None,
        *,
        is_bitwise: bool = False,
        cap: float | None = None,
    ) -> None:
        """`unsampled` are columns of this rank, and those of `kept` too; `top` is what `TopTokens.of_columns`
        makes of its part, and the whole `masses`; `dtype` is the logits'."""
        self.first = first
        self.num_rows = num_rows
        self.temperature = temperature
        self._unsampled = unsampled
        self.group = group
        self.dtype = dtype
        self.kept = kept
        self.top = top
        self.is_bitwise = is_bitwise
        self._cap = cap

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
        if self._unsampled is not None:
            logits = logits.index_fill(1, self._unsampled, -torch.inf)
        temperatures = torch.full((len(logits), 1), self.temperature)
        return kernels.token_logprobs(logits, temperatures, targets)

    def tempered(self, logits: Tensor) -> Tensor:
        """A float32 copy of `logits`, capped, divided by the temperature, without what is never sampled."""
        return self._without_unsampled(self.divided(logits))

    def shifted(self, logits: Tensor, less: Tensor) -> Tensor:
        """`tempered`, less a number of each row, [t] float32: in one pass where there is no other."""
        if self._cap is None and self.temperature == 1.0 and converts_as_it_computes(logits):
            return self._without_unsampled(torch.sub(logits, less[:, None]))
        return self._without_unsampled(self.divided(logits).sub_(less[:, None]))

    def largest(self, logits: Tensor) -> Tensor:
        """[t] largest of the tempered logits of each row. Dividing keeps their order, so it comes after."""
        if self._cap is not None:
            return self.tempered(logits).amax(-1)
        if self._unsampled is None:
            return self.divided(logits.amax(-1))
        kept = logits.index_select(1, self._unsampled)
        lowest = logits.index_fill_(1, self._unsampled, torch.finfo(logits.dtype).min).amax(-1)
        logits.index_copy_(1, self._unsampled, kept)
        return self.divided(lowest)

    def untempered(self, slopes: Tensor, logits: Tensor, out: Tensor) -> None:
        """Fills `out` with the gradient of `logits` from that of the tempered ones, which it overwrites."""
        if self._cap is not None:
            slopes = slopes if self.temperature == 1.0 else slopes.div_(self.temperature)
            out.copy_(slopes.mul_(1 - (logits.float() / self._cap).tanh_().square_()))
        elif self.temperature == 1.0:
            out.copy_(slopes)
        elif converts_as_it_computes(out):
            torch.div(slopes, self.temperature, out=out)
        else:
            out.copy_(slopes.div_(self.temperature))

    def divided(self, logits: Tensor) -> Tensor:
        """A float32 copy of `logits`, capped and divided by the temperature."""
        if self._cap is not None:
            copy = logits.to(torch.float32, copy=True).div_(self._cap).tanh_().mul_(self._cap)
            return copy if self.temperature == 1.0 else copy.div_(self.temperature)
        if self.temperature == 1.0:
            return logits.to(torch.float32, copy=True)
        if not converts_as_it_computes(logits):
            return logits.to(torch.float32, copy=True).div_(self.temperature)
        # By a float32 row and no number, so that 16-bit logits become float32 before they are divided.
        return torch.div(logits, logits.new_full((1,), self.temperature, dtype=torch.float32))

    def _without_unsampled(self, logits: Tensor) -> Tensor:
        return logits if self._unsampled is None else logits.index_fill_(1, self._unsampled, IMPOSSIBLE)

    def own(self, targets: Tensor) -> tuple[Tensor, Tensor]:
        """(column of each target here, whether it is one of ours)."""
        columns = targets - self.first
        return columns.clamp(0, self.num_rows - 1)[:, None], (columns >= 0) & (columns < self.num_rows)

    def top_of(self, part: slice) -> tuple[Tensor, Tensor]:
        """(columns, probabilities) [t, k] of the teacher's likeliest tokens at the rows `part`."""
        assert self.top is not None
        columns, shares, _ = self.top
        return columns[part], shares[part]

    def reduce(self, tensor: Tensor, operation: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> Tensor:
        if self.group is not None:
            dist.all_reduce(tensor, op=operation, group=self.group)
        return tensor


def converts_as_it_computes(tensor: Tensor) -> bool:
    """Whether reading or writing these numbers as float32 takes no pass of its own; on a CPU it takes longer
    than one."""
    return tensor.is_cuda or tensor.dtype is torch.float32


def _slices(length: int, size: int) -> list[slice]:
    return [slice(a, min(a + size, length)) for size in [max(1, size)] for a in range(0, length, size)]


class _ChunkedLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, hidden: Tensor, weight: Tensor, targets: Tensor, vocabulary: _Vocabulary
    ) -> tuple[Tensor, ...]:
        normalisers = torch.empty(len(hidden), dtype=torch.float32, device=hidden.device)
        logprobs, entropies = torch.empty_like(normalisers), torch.empty_like(normalisers)
        masses = [] if vocabulary.kept is None else [torch.empty_like(normalisers)]
        means = [] if vocabulary.top is None else [torch.empty_like(normalisers)]
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
                for mass in masses:
                    mass[part] = _log_masses(logits[rows], part, normalisers[part], vocabulary)
                for mean in means:
                    mean[part] = _means(logits[rows], part, normalisers[part], vocabulary)
            if is_kept:
                kept.append(logits)
        context.save_for_backward(hidden, weight, targets, normalisers, entropies, *masses, *kept)
        context.vocabulary = vocabulary
        context.set_materialize_grads(False)
        return logprobs, entropies, *masses, *means

    @staticmethod
    def backward(
        context: Any, of_logprobs: Tensor | None, of_entropies: Tensor | None, *others: Tensor | None
    ) -> tuple[Tensor, Tensor | None, None, None]:
        hidden, weight, targets, normalisers, entropies, *kept = context.saved_tensors
        vocabulary = context.vocabulary
        masses = None if vocabulary.kept is None else kept.pop(0)
        of_masses = None if masses is None else others[0]
        of_means = None if vocabulary.top is None else others[-1]
        totals = None if of_means is None else of_means * vocabulary.top[2]
        to_hidden = torch.empty_like(hidden)
        chunks = vocabulary.chunks(hidden)
        of_weight = None
        if context.needs_input_grad[1]:
            of_weight = WeightGradient(weight, vocabulary.num_rows, len(chunks))
        for i, chunk in enumerate(chunks):
            logits = kept[i] if kept else vocabulary.logits(hidden[chunk], weight)
            slopes = torch.empty_like(logits, dtype=hidden.dtype)
            for rows in vocabulary.slices(logits):
                own = slice(chunk.start + rows.start, chunk.start + rows.stop)
                found = _slopes(
                    vocabulary.shifted(logits[rows], normalisers[own]),
                    vocabulary.own(targets[own]),
                    None if of_logprobs is None else of_logprobs[own, None],
                    None if of_entropies is None else (of_entropies[own, None], entropies[own, None]),
                    None if totals is None else totals[own, None],
                )
                if of_means is not None:
                    columns, shares = vocabulary.top_of(own)
                    # Ids in a row differ; those of other ranks add 0, in whatever order.
                    found.scatter_add_(1, columns, shares * of_means[own, None])
                if masses is not None and of_masses is not None:
                    log = vocabulary.shifted(logits[rows], normalisers[own])
                    _add_slopes_of_masses(
                        found, log, of_masses[own], masses[own], vocabulary.kept.of_slice(own)
                    )
                vocabulary.untempered(found, logits[rows], slopes[rows])
            to_hidden[chunk] = slopes @ weight[: vocabulary.num_rows]
            if of_weight is not None:
                of_weight.add(slopes, hidden[chunk])
        return to_hidden, None if of_weight is None else of_weight.result(), None, None


# Functions of their own, so that one slice's matrices are gone before the next one's are made.
def _values(logits: Tensor, targets: Tensor, vocabulary: _Vocabulary) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probs, entropies and logarithms of the softmax's denominator of a slice, [t] each."""
    shared = vocabulary.shared_logprobs(logits, targets) if vocabulary.is_bitwise else None
    columns, is_own = vocabulary.own(targets)
    largest = vocabulary.reduce(vocabulary.largest(logits), dist.ReduceOp.MAX)
    logits = vocabulary.shifted(logits, largest)
    chosen = logits.gather(1, columns).squeeze(1) * is_own
    exponentials = logits.exp()
    sums = torch.stack([exponentials.sum(-1), logits.mul_(exponentials).sum(-1), chosen])
    total, weighted, chosen = vocabulary.reduce(sums)
    logprobs = chosen - total.log() if shared is None else shared
    return logprobs, total.log() - weighted / total, largest + total.log()


def _log_masses(logits: Tensor, part: slice, normalisers: Tensor, vocabulary: _Vocabulary) -> Tensor:
    """[t] logarithms of the probability of the kept tokens of the rows `part`."""
    assert vocabulary.kept is not None
    kept = vocabulary.kept.of_slice(part)
    logs = vocabulary.tempered(logits)[kept.rows, kept.tokens] - normalisers[kept.rows]
    largest = vocabulary.reduce(row_maxima(logs, kept.rows, len(normalisers)), dist.ReduceOp.MAX)
    sums = torch.zeros_like(normalisers).index_add_(0, kept.rows, (logs - largest[kept.rows]).exp())
    return vocabulary.reduce(sums).log() + largest


def _means(logits: Tensor, part: slice, normalisers: Tensor, vocabulary: _Vocabulary) -> Tensor:
    """[t] means of the log-probs of the teacher's likeliest tokens of the rows `part`, by its
    probabilities."""
    columns, shares = vocabulary.top_of(part)
    logs = vocabulary.divided(logits.gather(1, columns)) - normalisers[:, None]
    return vocabulary.reduce((shares * logs).sum(-1))


def _add_slopes_of_masses(
    slopes: Tensor, log: Tensor, of_masses: Tensor, masses: Tensor, kept: KeptSets
) -> None:
    """Adds to `slopes` [t, num_rows] the gradient of the tempered logits from the log-masses [t], whose own
    gradient is `of_masses`: times the distribution over the kept tokens less the one over all."""
    shares = (log[kept.rows, kept.tokens] - masses[kept.rows]).exp() * of_masses[kept.rows]
    slopes.sub_(log.exp_().mul_(of_masses[:, None]))
    # An id is kept once: nothing is added twice, so the order is no matter.
    slopes[kept.rows, kept.tokens] += shares


def _slopes(
    log: Tensor,
    own: tuple[Tensor, Tensor],
    of_logprobs: Tensor | None,
    of_entropies: tuple[Tensor, Tensor] | None,
    of_totals: Tensor | None = None,
) -> Tensor:
    """Gradient of the tempered logits from log-probs `log` [t, num_rows], which it overwrites.

    -p x (gradient of the log-prob + `of_totals` + gradient of the entropy x (log p + entropy)), and where the
    target is the gradient of the log-prob.
    """
    each = of_logprobs
    if of_totals is not None:
        each = of_totals if each is None else each + of_totals
    if of_entropies is None:
        assert each is not None, "torch asks for the gradient of none"
        slopes = log.exp_().mul_(-each)
    else:
        gradient, entropies = of_entropies
        probabilities = log.exp()
        factor = log.add_(entropies).mul_(-gradient)
        factor = factor if each is None else factor.sub_(each)
        slopes = probabilities.mul_(factor)
    if of_logprobs is not None:
        columns, is_own = own
        slopes.scatter_add_(1, columns, of_logprobs * is_own[:, None])
    return slopes
