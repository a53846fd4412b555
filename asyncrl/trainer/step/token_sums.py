"""Diagnostics of a step by more than one formula: effective sequences, exact mismatch, teacher, quadrants.

Each is a row of sums over the tokens or sequences of a micro-batch, added over micro-batches and ranks by
`diagnostics`, and the columns that follow.

Shapes: T response tokens, N sequences of one micro-batch.
"""

import math

import torch
from torch import Tensor

from asyncrl.algorithms.inputs import LossInputs, bounded_ratio
from asyncrl.model.column_bytes import TEACHER_LOGPROBS, TEACHER_TOP
from asyncrl.trainer.packing.batch import MicroBatch
from asyncrl.trainer.packing.terms import TopTokens


def share(amount: float, count: float, *, empty: float = math.nan) -> float:
    # The mean of no tokens is no number: a zero would read as a perfect match.
    return amount / count if count else empty


# How many sequences a step really learns from: the effective sample size of its unclipped weights,
# ESS = (sum w)^2 / sum w^2 (Kong 1992), as a share of the number of sequences; w is a sequence's product of
# token ratios pi_prox / mu, over its tokens that count. Stale data make w heavy-tailed: few sequences then
# carry the gradient, before rewards show it (VCPO, Huang et al. 2026, arXiv 2602.17616). Split by the
# staleness of a sequence's oldest token that counts.
LAGS = ("1", "2_3", "4_7", "8_15", "16_up")
"""Buckets of staleness, in versions; a lag of 0 is in none of them."""
AGES = ("0", *LAGS)
"""Staleness of a sequence's oldest token."""
EFFECTIVE_SUMS = ("sequences", "weight", "weight_squared")
NUM_EFFECTIVE_SUMS = len(AGES) * len(EFFECTIVE_SUMS)
MAX_SEQUENCE_LOG_RATIO = 300.0
"""Where bounded_ratio's bound would make the largest weights equal, and the ESS of a collapse look whole: the
square of e^300 is finite in float64."""


def stale_buckets(lags: Tensor) -> Tensor:
    """[...] int64 index into LAGS; a lag below 1 counts as 1."""
    return lags.clamp(min=1).double().log2().floor().long().clamp(max=len(LAGS) - 1)


def oldest_lags(inputs: LossInputs, lags: Tensor, num_sequences: int) -> Tensor:
    """[T] -> [N]: the staleness of each sequence's oldest token that counts; 0 of one without any."""
    counted = torch.where(inputs.mask, lags, 0)
    return lags.new_zeros(num_sequences).scatter_reduce(0, inputs.sequence_ids, counted, "amax")


def effective_sums(log_ratios: Tensor, oldest: Tensor, are_there: Tensor) -> Tensor:
    """[NUM_EFFECTIVE_SUMS] float64 from [N] float64 sums of the sequences' log-ratios and [N] `oldest_lags`;
    `are_there` [N] is 1 of a sequence that has a token that counts, and 0 of others."""
    weights = are_there * log_ratios.clamp(-MAX_SEQUENCE_LOG_RATIO, MAX_SEQUENCE_LOG_RATIO).exp()
    ages = torch.where(oldest > 0, stale_buckets(oldest) + 1, 0)
    columns = torch.stack([are_there, weights, weights.square()], dim=1)
    return weights.new_zeros(len(AGES), len(EFFECTIVE_SUMS)).index_add(0, ages, columns).flatten()


def effective_share(sums: Tensor) -> float:
    """ESS over the number of sequences, from the sums of a step; NaN of no sequence, 1 where all weigh the
    same."""
    return _effective(*sums.view(len(AGES), len(EFFECTIVE_SUMS)).sum(0).tolist())


def effective_metrics(sums: Tensor) -> dict[str, float]:
    """Columns of a step from [NUM_EFFECTIVE_SUMS] over all its micro-batches and ranks."""
    rows = sums.view(len(AGES), len(EFFECTIVE_SUMS)).tolist()
    return {
        "sequence_effective_share": effective_share(sums),
        **{
            f"staleness_sequence_effective_share_lag_{age}": _effective(*row)
            for age, row in zip(AGES, rows, strict=True)
        },
    }


def _effective(count: float, total: float, squares: float) -> float:
    return share(total**2, count * squares) if count else math.nan


# Mismatch of the engines and staleness apart, token by token, also of stale tokens:
# pi_prox / mu_v = (pi_v / mu_v) x (pi_prox / pi_v), where v is the version that sampled the token, mu_v the
# server that served it and pi_v the trainer's own policy of that version. The first factor is that of the
# engines alone, the second that of the steps since v (arXiv 2605.12070). At staleness 0 pi_v is pi_prox and
# the second factor 1. Tokens that were sampled on a cache of an older version belong to no single policy:
# their first factor is told apart. KL by the estimator k3, over tokens of mu_v: that of staleness takes them
# for tokens of pi_v.
SPLIT_SUMS = ("tokens", "unknown", "plain", "plain_k3", "continued", "continued_k3", "stale", "stale_k3")
"""Tokens that count; those whose version is not kept; then by kind the others and their k3. Plain: sampled on
a cache of one version."""
NUM_SPLIT_SUMS = len(SPLIT_SUMS)
SPLIT_MAXIMA = ("exact_mismatch_ratio", "exact_staleness_ratio")


def split_sums(inputs: LossInputs, micro: MicroBatch) -> tuple[Tensor, Tensor]:
    """(sums, maxima) as float64 over the tokens that count, 0 without `inputs.sampled`."""
    sampled = inputs.sampled
    if sampled is None:
        zeros = inputs.proximal.new_zeros(NUM_SPLIT_SUMS + len(SPLIT_MAXIMA), dtype=torch.float64)
        return zeros[:NUM_SPLIT_SUMS], zeros[NUM_SPLIT_SUMS:]
    policy, behavior, is_counted = inputs.policy(), inputs.behavior, inputs.mask
    is_stale = micro.lags > 0
    own = torch.where(is_stale, sampled, policy)
    is_known = own.isfinite() & is_counted
    own = torch.where(is_known, own, behavior)
    is_continued = micro.are_continued & is_known
    is_plain, is_stale = is_known & ~is_continued, is_stale & is_known
    mismatch, of_engines = _k3(own, behavior)
    drift, of_steps = _k3(policy, own)
    sums = [is_counted.double(), (is_counted & ~is_known).double()]
    for kind, values in ((is_plain, mismatch), (is_continued, mismatch), (is_stale, drift)):
        sums += [kind.double(), torch.where(kind, values, 0.0)]
    zero = of_engines.new_zeros(1)
    largest = [
        torch.cat([torch.where(kind, ratio, 0.0), zero]).max()
        for ratio, kind in ((of_engines, is_plain), (of_steps, is_stale))
    ]
    return torch.stack(sums).sum(1), torch.stack(largest)


def split_metrics(sums: Tensor, largest: dict[str, float]) -> dict[str, float]:
    """Columns of a step; none where nothing was split."""
    total = dict(zip(SPLIT_SUMS, sums.tolist(), strict=True))
    if not total["tokens"]:
        return {}
    return {
        "mismatch_exact_kl": share(total["plain_k3"], total["plain"]),
        "mismatch_exact_ratio_max": largest["exact_mismatch_ratio"] if total["plain"] else math.nan,
        "mismatch_exact_continued_kl": share(total["continued_k3"], total["continued"]),
        "staleness_exact_kl": share(total["stale_k3"], total["stale"]),
        "staleness_exact_ratio_max": largest["exact_staleness_ratio"] if total["stale"] else math.nan,
        "staleness_unknown_share": total["unknown"] / total["tokens"],
    }


def _k3(policy: Tensor, sampler: Tensor) -> tuple[Tensor, Tensor]:
    """[T] float64 each: r - 1 - ln r of r = policy / sampler, and r."""
    ratio = bounded_ratio(policy, sampler).double()
    return ratio - 1 - (policy - sampler).double(), ratio


# How far the policy is from its teacher: by the tokens that it sampled, and by those that the teacher finds
# likeliest there.
NUM_TEACHER_SUMS = 5
"""Tokens that count and have a log-prob of the teacher; ln mu - ln t of them; those of them with its
likeliest tokens; the forward KL over these, and their probability."""


def teacher_sums(inputs: LossInputs, micro: MicroBatch) -> Tensor:
    """[NUM_TEACHER_SUMS] float64 over the tokens that count; 0 without a teacher."""
    found = inputs.proximal.new_zeros(NUM_TEACHER_SUMS, dtype=torch.float64)
    teacher, top = micro.columns.get(TEACHER_LOGPROBS), micro.terms.get(TEACHER_TOP)
    if teacher is None:
        return found
    gaps = inputs.behavior.double() - teacher.to(found.device).double()
    found[:2] = _counted(inputs, torch.ones_like(gaps), gaps)
    if isinstance(top, TopTokens) and inputs.forward_kl is not None:
        masses, kl = top.masses()[micro.copies], inputs.forward_kl.detach()
        found[2:] = _counted(inputs, torch.ones_like(kl), kl, masses)
    return found


def _counted(inputs: LossInputs, *values: Tensor) -> Tensor:
    """[len(values)] float64 sums of [T] each over the tokens that count."""
    return torch.where(inputs.mask, torch.stack(values).double(), 0.0).sum(1)


def teacher_metrics(sums: Tensor) -> dict[str, float]:
    """Columns of a step from [NUM_TEACHER_SUMS] over all micro-batches and ranks; none without a teacher.

    teacher_kl estimates KL(mu || t), the reverse KL per token, by its mean of ln mu - ln t over tokens of mu
    (k1): unbiased, and negative now and then where the two are close. teacher_forward_kl is the mean of
    `top_k_forward_kl`, teacher_top_mass that of the probability which the teacher's k tokens have of its."""
    count, total, num_top, forward, mass = sums.tolist()
    found = {"teacher_kl": total / count} if count else {}
    return found | (
        {"teacher_forward_kl": forward / num_top, "teacher_top_mass": mass / num_top} if num_top else {}
    )


# Tokens that a step learns from: likely or unlikely ones, of positive or negative advantage. A token's part
# of the gradient is |g|, g the derivative of the loss with respect to the token's log-prob, before the
# denominator: of the policy loss and KL, not of the entropy bonus. It comes with the backward pass and costs
# none of its own. It is a proxy: in the logits a token's gradient is |g| (1 - p) at its own one, so that
# likely tokens move weights less than their part says; and parts that cancel in the weights add up here.
LIKELY = 0.5
"""Probability, under the policy in training, from which on a token is likely."""
QUADRANTS = ("likely_positive", "likely_negative", "unlikely_positive", "unlikely_negative")
NUM_QUADRANT_SUMS = 2 * len(QUADRANTS)
"""Tokens that count by quadrant, then |g|. Advantages of 0 are in none."""


def quadrant_sums(inputs: LossInputs) -> Tensor:
    """[NUM_QUADRANT_SUMS] float64; the parts of the gradient are 0 until `watch_quadrants` finds them."""
    counts = _by_quadrant(torch.ones_like(inputs.proximal), inputs)
    return torch.cat([counts, torch.zeros_like(counts)])


def watch_quadrants(inputs: LossInputs, sums: Tensor) -> None:
    """Adds to the last of `sums`, in place, as the backward pass brings the gradient."""
    if not inputs.current.requires_grad:
        return

    def add(gradient: Tensor) -> None:
        sums[-len(QUADRANTS) :] += _by_quadrant(gradient.detach().abs(), inputs)

    inputs.current.register_hook(add)


def quadrant_metrics(sums: Tensor) -> dict[str, float]:
    """Columns of a step from [NUM_QUADRANT_SUMS] over all its micro-batches and ranks."""
    found = {}
    for name, own in zip(("token", "gradient"), sums.view(2, len(QUADRANTS)).tolist(), strict=True):
        total = sum(own)
        for quadrant, part in zip(QUADRANTS, own, strict=True):
            found[f"{name}_share_{quadrant}"] = share(part, total)
    return found


@torch.no_grad()
def _by_quadrant(values: Tensor, inputs: LossInputs) -> Tensor:
    """[len(QUADRANTS)] float64 sums over the tokens that count."""
    is_likely = inputs.current.detach() >= math.log(LIKELY)
    is_positive, is_negative = inputs.advantages > 0, inputs.advantages < 0
    masks = [side & sign for side in (is_likely, ~is_likely) for sign in (is_positive, is_negative)]
    return torch.stack([torch.where(mask & inputs.mask, values.double(), 0.0).sum() for mask in masks])
