"""Diagnostics of a step: sums over tokens, added over micro-batches and ranks, then divided.

Tokens of lag 0 show the pure train-inference mismatch; tokens of lag >= 1 add staleness to it; tokens of lag
0 that were sampled over the keys and values of an older version (a publish in place) are neither. Never
mixed. Shapes: T response tokens of one micro-batch, K kinds of tokens, Q quarters of a response.
"""

import math

import torch
from torch import Tensor

from asyncrl.algorithms.inputs import LossInputs, bounded_exp, bounded_ratio, sequence_sum
from asyncrl.algorithms.losses import LossParts
from asyncrl.recipe import Algorithm
from asyncrl.recipe.algorithm_terms import Truncated
from asyncrl.trainer.packing.batch import MicroBatch
from asyncrl.trainer.step import token_sums
from asyncrl.trainer.step.token_sums import LAGS, share, stale_buckets

TOTALS = (
    *("loss", "denominator", "tokens", "nonfinite", "too_stale", "cut_off", "packed", "survivors", "faults"),
    "held",
)
"""Cut off: tokens of responses that the recipe leaves out for it. Survivors: tokens that count and have a
weight. Faults: values of own terms that are no numbers. Held: tokens that an entropy control or
top_entropy_share holds back."""
TOKEN_SUMS = (
    *("entropy", "ratio", "ratio_squared", "lag"),
    *("capped", "masked", "clipped", "outside", "weight", "weight_squared", "policy_kl"),
)
SEQUENCE_SUMS = ("sequences", "log_ratio", "absolute_log_ratio", "sequence_ratio_squared")
"""Sums over sequences with a token that counts; log-ratios are summed over these."""
KINDS = ("fresh", "continued", *LAGS)
KIND_SUMS = ("tokens", "k1", "k3", "ratio", "ratio_squared", "capped")
NUM_QUARTERS = 4
SIZES = [len(TOTALS), len(TOKEN_SUMS), len(SEQUENCE_SUMS)]
SIZES += [len(KINDS) * len(KIND_SUMS), NUM_QUARTERS * len(KINDS) * 2, token_sums.NUM_EFFECTIVE_SUMS]
EFFECTIVE = len(SIZES) - 1
"""Place of the sums of `token_sums.effective_sums`."""
SIZES += [token_sums.NUM_SPLIT_SUMS, token_sums.NUM_TEACHER_SUMS, token_sums.NUM_QUADRANT_SUMS]
NUM_SUMS = sum(SIZES)
MAXIMA = (
    *("ratio", "lag", "fresh_log_ratio", "fresh_ratio", "stale_ratio", "sequence_log_ratio"),
    *(f"ratio_lag_{lag}" for lag in LAGS),
    *token_sums.SPLIT_MAXIMA,
)


def micro_batch_sums(
    inputs: LossInputs, parts: LossParts, micro: MicroBatch, *, algorithm: Algorithm
) -> tuple[Tensor, Tensor]:
    """(all sums in a row, [len(MAXIMA)]) float64, over the tokens that count.

    Other tokens become zeros: choosing by a mask would make the host wait for a GPU."""
    mask = inputs.mask
    assert inputs.entropies is not None

    def counted(values: Tensor) -> Tensor:
        return torch.where(mask, values.detach().double(), 0.0)

    kinds = token_kinds(micro.lags, micro.are_continued)
    log_ratio = counted(inputs.policy() - inputs.behavior)
    ratio = counted(bounded_ratio(inputs.policy(), inputs.behavior))
    # Both estimate KL(mu || pi) from tokens of mu: k1 = -log r is unbiased, k3 = r - 1 - log r also never
    # negative and calmer (Schulman 2020, joschu.net/blog/kl-approx.html).
    k1, k3 = -log_ratio, counted(ratio - 1 - log_ratio)
    lags = counted(micro.lags)
    is_finite = micro.behavior.isfinite()
    is_masked = torch.zeros_like(is_finite) if micro.is_masked is None else micro.is_masked
    totals = [
        parts.total,
        parts.denominator,
        mask.sum(),
        (~is_finite).sum(),
        (~mask & is_finite & ~is_masked).sum(),
        (is_finite & is_masked).sum(),
        lags.new_full((), len(micro.tokens)),
        (mask & (parts.weights != 0)).sum(),
        sum((faults.number for faults in parts.faults), lags.new_zeros(())),
        (_held_back(inputs) & mask).sum(),
    ]
    capped, *interventions = map(counted, _interventions(inputs, parts, algorithm))
    per_token = torch.stack([counted(inputs.entropies), ratio, ratio.square(), lags, capped, *interventions])
    are_there = sequence_sum(mask.double(), inputs).clamp(max=1)
    log_ratios = sequence_sum(log_ratio, inputs)
    oldest = token_sums.oldest_lags(inputs, micro.lags, len(are_there))
    per_kind = torch.stack([mask.double(), k1, k3, ratio, ratio.square(), capped], dim=1)
    quarters = response_quarters(inputs.sequence_ids, len(are_there)) * len(KINDS) + kinds
    split, largest_factors = token_sums.split_sums(inputs, micro)
    sums = [
        torch.stack([total.detach().double() for total in totals]),
        per_token.sum(1),
        _sequence_sums(log_ratios, are_there),
        _sum_by(kinds, per_kind, len(KINDS)),
        _sum_by(quarters, per_kind[:, :3:2], NUM_QUARTERS * len(KINDS)),
        token_sums.effective_sums(log_ratios, oldest, are_there),
        split,
        token_sums.teacher_sums(inputs, micro),
        # Last: its end is filled in by the backward pass.
        token_sums.quadrant_sums(inputs),
    ]
    first_stale = KINDS.index(LAGS[0])
    is_fresh, is_stale = kinds == 0, kinds >= first_stale
    extremes = [ratio, lags, log_ratio.abs() * is_fresh, ratio * is_fresh, ratio * is_stale, log_ratios.abs()]
    extremes += [ratio * (kinds == first_stale + i) for i in range(len(LAGS))]
    zero = ratio.new_zeros(1)
    maxima = torch.stack([torch.cat([values, zero]).max() for values in extremes])
    return torch.cat(sums), torch.cat([maxima, largest_factors])


def _held_back(inputs: LossInputs) -> Tensor:
    """[T] bool: tokens that an entropy control hit, or whose entropy is too low for a loss."""
    found = torch.zeros_like(inputs.mask) if inputs.hit is None else inputs.hit
    return found if inputs.is_top is None else found | ~inputs.is_top


def token_kinds(lags: Tensor, are_continued: Tensor) -> Tensor:
    """[T] int64 index into KINDS."""
    return torch.where(lags > 0, stale_buckets(lags) + KINDS.index(LAGS[0]), are_continued.long())


def response_quarters(sequence_ids: Tensor, num_sequences: int) -> Tensor:
    """[T] int64, 0 for the first quarter of the token's response to 3 for its last."""
    ones = torch.ones_like(sequence_ids)
    sizes = ones.new_zeros(num_sequences).index_add(0, sequence_ids, ones)
    starts = sizes.cumsum(0) - sizes
    positions = torch.arange(len(sequence_ids), device=sequence_ids.device) - starts[sequence_ids]
    return positions * NUM_QUARTERS // sizes[sequence_ids]


def _sequence_sums(log_ratios: Tensor, are_there: Tensor) -> Tensor:
    """[len(SEQUENCE_SUMS)] float64, of log(pi / mu) summed over each sequence; `are_there` is 1 of one with a
    token that counts, else 0."""
    parts = (are_there, log_ratios, log_ratios.abs(), are_there * bounded_exp(2 * log_ratios))
    return torch.stack([part.sum() for part in parts])


def _interventions(inputs: LossInputs, parts: LossParts, algorithm: Algorithm) -> list[Tensor]:
    """Effects of the loss on each token, [T] each: capped, masked, clipped, outside a trust region, its
    weight and the weight's square; and how far the policy moved."""
    weights, applied = parts.weights, parts.applied.double()
    weight = algorithm.importance_weight
    is_capped = weights >= (weight.cap if isinstance(weight, Truncated) else math.inf)
    current = inputs.current.detach()
    moved = (current - inputs.proximal).double()
    policy_kl = bounded_ratio(current, inputs.proximal).double() - 1 - moved
    # A surrogate that does not report what it clipped has no share: NaN.
    clipped = torch.full_like(applied, math.nan) if parts.clipped is None else parts.clipped
    return [is_capped, weights == 0, clipped, parts.outside, applied, applied.square(), policy_kl]


def _sum_by(buckets: Tensor, values: Tensor, num_buckets: int) -> Tensor:
    """[T], [T, C] -> [num_buckets * C]: column sums per bucket, one bucket after the other."""
    return values.new_zeros(num_buckets, values.shape[1]).index_add(0, buckets, values).flatten()


class Tally:
    """The sums of one step, over its micro-batches, ranks and optimizer steps."""

    def __init__(self) -> None:
        self._sums: Tensor | None = None
        self._maxima: Tensor | None = None
        self._latest: Tensor | None = None

    def add(self, sums: Tensor, maxima: Tensor) -> None:
        self._latest = sums
        self._sums = sums if self._sums is None else self._sums + sums
        self._maxima = maxima if self._maxima is None else torch.maximum(self._maxima, maxima)

    def num_faults(self) -> int:
        """Values of the recipe's own terms that are no numbers. Waits for the device."""
        assert self._sums is not None
        return int(self._sums[TOTALS.index("faults")].item())

    def latest_effective_share(self) -> float:
        """Effective sample size of the sequences that came last, as a share. Waits for the device."""
        assert self._latest is not None
        return token_sums.effective_share(self._latest.split(SIZES)[EFFECTIVE])

    def metrics(self) -> dict[str, float]:
        assert self._sums is not None and self._maxima is not None
        return step_diagnostics(self._sums, self._maxima)


def step_diagnostics(sums: Tensor, maxima: Tensor) -> dict[str, float]:
    """Metrics of one step from sums and maxima over all its micro-batches and ranks."""
    # One wait for the device, however many numbers follow.
    sums, maxima = torch.cat([sums, maxima]).cpu().split([NUM_SUMS, len(MAXIMA)])
    totals, per_token, per_sequence, per_kind, per_quarter, effective, split, gaps, by_quadrant = sums.split(
        SIZES
    )
    names = (*TOTALS, *TOKEN_SUMS, *SEQUENCE_SUMS)
    total = dict(zip(names, torch.cat([totals, per_token, per_sequence]).tolist(), strict=True))
    largest = dict(zip(MAXIMA, maxima.tolist(), strict=True))
    kinds = per_kind.view(len(KINDS), len(KIND_SUMS))
    quarters = per_quarter.view(NUM_QUARTERS, len(KINDS), 2)
    first_stale = KINDS.index(LAGS[0])
    sampled = total["tokens"] + total["nonfinite"] + total["too_stale"] + total["cut_off"]
    fresh, continued, stale = kinds[0], kinds[1], kinds[first_stale:].sum(0)
    return {
        "loss": share(total["loss"], total["denominator"], empty=0.0),
        "num_tokens": total["tokens"],
        "num_packed_tokens": total["packed"],
        "nonfinite_tokens": total["nonfinite"],
        "too_stale_tokens": total["too_stale"],
        "masked_cut_off_tokens": total["cut_off"],
        "masked_cut_off_share": share(total["cut_off"], sampled),
        "surviving_tokens": total["survivors"],
        "held_back_tokens": total["held"],
        "left_out_share": 1 - share(total["survivors"], sampled),
        "entropy": share(total["entropy"], total["tokens"]),
        "mean_importance_ratio": share(total["ratio"], total["tokens"]),
        "max_importance_ratio": largest["ratio"],
        "capped_share": share(total["capped"], total["tokens"]),
        "masked_share": share(total["masked"], total["tokens"]),
        "trust_region_share": share(total["outside"], total["tokens"]),
        "clipped_share": share(total["clipped"], total["tokens"]),
        # Of the weights that multiply the loss, 0 for rejected tokens: 1 when all tokens weigh the same.
        "weight_effective_share": share(total["weight"] ** 2, total["tokens"] * total["weight_squared"]),
        "weight_mean": share(total["weight"], total["tokens"]),
        # The same of full weights, of tokens and (below) of whole responses.
        "token_effective_share": share(total["ratio"] ** 2, total["tokens"] * total["ratio_squared"]),
        **token_sums.effective_metrics(effective),
        # E_mu[rho^2] - 1, of tokens and of whole responses: the variance that full weights would have.
        "chi_square": share(total["ratio_squared"], total["tokens"]) - 1,
        "sequence_chi_square": share(total["sequence_ratio_squared"], total["sequences"]) - 1,
        "sequence_log_ratio_mean": share(total["log_ratio"], total["sequences"]),
        "sequence_log_ratio_absolute_mean": share(total["absolute_log_ratio"], total["sequences"]),
        "sequence_log_ratio_max": largest["sequence_log_ratio"],
        "policy_kl": share(total["policy_kl"], total["tokens"]),
        "staleness_mean": share(total["lag"], total["tokens"]),
        "staleness_max": largest["lag"],
        **_divergence("mismatch", fresh),
        "mismatch_ratio_max": largest["fresh_ratio"],
        "mismatch_logprob_max": largest["fresh_log_ratio"],
        "continued_share": share(continued[0].item(), total["tokens"]),
        "continued_kl": share(*continued[[2, 0]].tolist()),
        **_divergence("staleness", stale),
        "staleness_ratio_max": largest["stale_ratio"],
        **token_sums.split_metrics(split, largest),
        **token_sums.teacher_metrics(gaps),
        **token_sums.quadrant_metrics(by_quadrant),
        **_by_lag(kinds[first_stale:], largest),
        **{
            f"mismatch_kl_quarter_{i + 1}": share(*quarters[i, 0, [1, 0]].tolist())
            for i in range(NUM_QUARTERS)
        },
        **{
            f"staleness_kl_quarter_{i + 1}": share(*quarters[i, first_stale:].sum(0)[[1, 0]].tolist())
            for i in range(NUM_QUARTERS)
        },
    }


def _by_lag(kinds: Tensor, largest: dict[str, float]) -> dict[str, float]:
    """Columns by staleness, from one row of KIND_SUMS for each of LAGS."""
    found: dict[str, dict[str, float]] = {name: {} for name in ("kl", "effective", "capped", "max")}
    for lag, row in zip(LAGS, kinds.tolist(), strict=True):
        tokens, _, k3, ratio, squared, capped = row
        found["kl"][f"staleness_kl_lag_{lag}"] = share(k3, tokens)
        found["effective"][f"staleness_effective_share_lag_{lag}"] = share(ratio**2, tokens * squared)
        found["capped"][f"staleness_capped_share_lag_{lag}"] = share(capped, tokens)
        found["max"][f"staleness_ratio_max_lag_{lag}"] = largest[f"ratio_lag_{lag}"] if tokens else math.nan
    return {name: value for columns in found.values() for name, value in columns.items()}


def _divergence(name: str, kind: Tensor) -> dict[str, float]:
    """KL, mean ratio and effective sample size (as a share of the tokens) from one row of KIND_SUMS."""
    tokens, k1, k3, ratio, squared, _ = kind.tolist()
    return {
        f"{name}_kl": share(k3, tokens),
        f"{name}_kl_k1": share(k1, tokens),
        f"{name}_ratio_mean": share(ratio, tokens),
        # (sum r)^2 / (n sum r^2): 1 when all tokens weigh the same (Kong 1992).
        f"{name}_effective_share": share(ratio**2, tokens * squared),
    }
