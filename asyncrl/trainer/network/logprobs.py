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
logits at a time, and on a CPU normalized in slices that stay in the processor's cache. The backward pass
finds logits that fit into KEPT_BYTES as they were; of more it computes each chunk again, one more product of
the output layer. It then holds at most three float32 matrices of a chunk, 768 MiB on each rank, whatever the
number of tokens, and sums the gradient of the weight in float32: 4 bytes x W x H, and a product of that size.

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

from asyncrl.model.memory import LOGITS_AT_ONCE
from asyncrl.serving.kernels import rows as kernels
from asyncrl.trainer.packing.kept_sets import KeptSets
from asyncrl.trainer.packing.top_tokens import TopTokens

KEPT_BYTES = 2**29
"""Limit on logits that wait for the backward pass; bfloat16 ones lose nothing by it."""
SLICE_LOGITS = 2**18
"""In float32 1 MiB: the dozen passes over a slice stay in a core's cache."""
IMPOSSIBLE = -1e30
"""A logit of this size has a probability of exactly 0. Unlike -inf, 0 times it is no NaN."""


def token_logprobs(
    logits: Tensor,
    targets: Tensor,
    temperature: float,
    unsampled: Tensor | None = None,
    kept: KeptSets | None = None,
    top: TopTokens | None = None,
    cap: float | None = None,
) -> tuple[Tensor, ...]:
    """[T, V], [T] -> float32 natural log-probs of the targets [T], entropies [T], with `kept` the logs of the
    kept tokens' probability [T], and with `top` the means of the teacher's likeliest [T]; all with gradient.

    `unsampled` [U] int64 are ids that are never sampled; no target is one of them. `cap` is the c of logits
    c tanh(logit / c).
    """
    if cap is not None:
        logits = cap * torch.tanh(logits.float() / cap)
    logits = logits.float() / temperature
    if unsampled is not None:
        logits = logits.index_fill(-1, unsampled, IMPOSSIBLE)
    everything = torch.log_softmax(logits, dim=-1)
    values: tuple[Tensor, ...] = (
        everything.gather(-1, targets[:, None]).squeeze(-1),
        _Entropy.apply(everything),
    )
    if top is not None:
        columns, shares = top.of_columns(0, logits.shape[-1])
        values = *values, (shares * everything.gather(-1, columns)).sum(-1)
    if kept is None:
        return values
    logs = everything[kept.rows, kept.tokens]
    largest = _row_maxima(logs.detach(), kept.rows, len(targets))
    masses = torch.zeros_like(largest).index_add(0, kept.rows, (logs - largest[kept.rows]).exp())
    return *values[:2], masses.log() + largest, *values[2:]


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


def _row_maxima(values: Tensor, rows: Tensor, num_rows: int) -> Tensor:
    """[E], [E] -> [num_rows], the largest value of each row; IMPOSSIBLE where it has none."""
    return values.new_full((num_rows,), IMPOSSIBLE).scatter_reduce(0, rows, values, "amax")


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

    def chunks(self, num_tokens: int) -> list[slice]:
        """Tokens of one product."""
        return _slices(num_tokens, LOGITS_AT_ONCE // self.num_rows)

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
        copy = logits.to(torch.float32, copy=True)
        if self._cap is not None:
            copy = copy.div_(self._cap).tanh_().mul_(self._cap)
        copy = copy if self.temperature == 1.0 else copy.div_(self.temperature)
        return copy if self._unsampled is None else copy.index_fill_(1, self._unsampled, IMPOSSIBLE)

    def untempered(self, slopes: Tensor, logits: Tensor) -> Tensor:
        """The gradient of `logits` from that of the tempered ones, which it overwrites."""
        slopes = slopes if self.temperature == 1.0 else slopes.div_(self.temperature)
        if self._cap is None:
            return slopes
        return slopes.mul_(1 - (logits.float() / self._cap).tanh_().square_())

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
        for chunk in vocabulary.chunks(len(hidden)):
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
        chunks = vocabulary.chunks(len(hidden))
        # The product of a single chunk is the gradient; those of several are added up in float32.
        is_sum = len(chunks) != 1
        to_weight = to_rows = None
        if context.needs_input_grad[1]:
            to_weight = torch.empty_like(weight, dtype=torch.float32 if is_sum else None)
            to_weight[0 if is_sum else vocabulary.num_rows :] = 0
            to_rows = to_weight[: vocabulary.num_rows]
        for i, chunk in enumerate(chunks):
            logits = kept[i] if kept else vocabulary.logits(hidden[chunk], weight)
            slopes = torch.empty_like(logits, dtype=hidden.dtype)
            for rows in vocabulary.slices(logits):
                own = slice(chunk.start + rows.start, chunk.start + rows.stop)
                found = _slopes(
                    vocabulary.tempered(logits[rows]).sub_(normalisers[own, None]),
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
                    log = vocabulary.tempered(logits[rows]).sub_(normalisers[own, None])
                    _add_slopes_of_masses(
                        found, log, of_masses[own], masses[own], vocabulary.kept.of_slice(own)
                    )
                slopes[rows] = vocabulary.untempered(found, logits[rows])
            to_hidden[chunk] = slopes @ weight[: vocabulary.num_rows]
            if to_rows is None:
                continue
            if is_sum:
                to_rows += slopes.t() @ hidden[chunk]
            else:
                torch.mm(slopes.t(), hidden[chunk], out=to_rows)
        return to_hidden, None if to_weight is None else to_weight.to(weight.dtype), None, None


# Functions of their own, so that one slice's matrices are gone before the next one's are made.
def _values(logits: Tensor, targets: Tensor, vocabulary: _Vocabulary) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probs, entropies and logarithms of the softmax's denominator of a slice, [t] each."""
    shared = vocabulary.shared_logprobs(logits, targets) if vocabulary.is_bitwise else None
    logits = vocabulary.tempered(logits)
    columns, is_own = vocabulary.own(targets)
    largest = vocabulary.reduce(logits.amax(-1), dist.ReduceOp.MAX)
    logits -= largest[:, None]
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
    largest = vocabulary.reduce(_row_maxima(logs, kept.rows, len(normalisers)), dist.ReduceOp.MAX)
    sums = torch.zeros_like(normalisers).index_add_(0, kept.rows, (logs - largest[kept.rows]).exp())
    return vocabulary.reduce(sums).log() + largest


def _means(logits: Tensor, part: slice, normalisers: Tensor, vocabulary: _Vocabulary) -> Tensor:
    """[t] means of the log-probs of the teacher's likeliest tokens of the rows `part`, by its
    probabilities."""
    columns, shares = vocabulary.top_of(part)
    logs = logits.gather(1, columns).float() / vocabulary.temperature - normalisers[:, None]
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
    probabilities = log.exp()
    each = of_logprobs
    if of_totals is not None:
        each = of_totals if each is None else each + of_totals
    if of_entropies is None:
        assert each is not None, "torch asks for the gradient of none"
        factor = each
    else:
        gradient, entropies = of_entropies
        factor = log.add_(entropies).mul_(gradient)
        factor = factor if each is None else factor.add_(each)
    slopes = probabilities.mul_(factor).neg_()
    if of_logprobs is not None:
        columns, is_own = own
        slopes.scatter_add_(1, columns, of_logprobs * is_own[:, None])
    return slopes
