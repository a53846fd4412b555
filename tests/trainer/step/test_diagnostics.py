"""Mismatch and staleness that were put in on purpose are found again, apart, and where they are."""

import dataclasses
import math
from pathlib import Path

import pytest
import torch
from fakes.injection import Injection, Recovered, recover
from fakes.loss_inputs import make_inputs
from fakes.models import random_batch

from asyncrl.algorithms.losses import make_loss
from asyncrl.algorithms.surrogates import SURROGATES
from asyncrl.recipe import Algorithm
from asyncrl.recipe.algorithm_terms import GeometricMean, TokenVeto
from asyncrl.recipe.terms import chosen
from asyncrl.trainer.packing.batch import make_micro_batch, rank_micro_batches
from asyncrl.trainer.step.diagnostics import (
    KINDS,
    Tally,
    micro_batch_sums,
    response_quarters,
    step_diagnostics,
    token_kinds,
)
from asyncrl.trainer.step.objective import Objective

BUCKETS = {1: "1", 2: "2_3", 4: "4_7", 8: "8_15"}

CLIPLESS = ("reinforce", "ratio", "sapo")


@pytest.fixture(scope="module")
def both() -> Recovered:
    return recover(Injection(noise=0.1, drift=0.15))


def test_tokens_of_lag_0_show_the_injected_mismatch_alone(both: Recovered):
    assert both.metrics["mismatch_kl"] == pytest.approx(both.true_kl[0], rel=0.05)
    # k1 has the same mean and far more noise: std sqrt(2 KL) = 0.1 over sqrt(20,000) tokens
    assert both.metrics["mismatch_kl_k1"] == pytest.approx(both.true_kl[0], abs=3 * 0.1 / 20_000**0.5)


def test_each_bucket_of_lag_shows_the_injected_staleness(both: Recovered):
    for lag, bucket in BUCKETS.items():
        assert both.metrics[f"staleness_kl_lag_{bucket}"] == pytest.approx(both.true_kl[lag], rel=0.1), lag
    stale = [both.true_kl[lag] for lag in BUCKETS]
    assert both.metrics["staleness_kl"] == pytest.approx(sum(stale) / len(stale), rel=0.1)
    # Logits that walk away by independent steps: the KL grows in proportion to the lag.
    assert stale == sorted(stale)


def test_lag_does_not_leak_into_the_mismatch_nor_noise_into_a_run_without_lag():
    only_lag, only_noise = recover(Injection(noise=0.0, drift=0.15)), recover(Injection(noise=0.1, drift=0.0))
    assert only_lag.metrics["mismatch_kl"] == pytest.approx(0.0, abs=1e-12)
    assert only_lag.metrics["mismatch_effective_share"] == pytest.approx(1.0)
    for bucket in BUCKETS.values():
        found = only_noise.metrics[f"staleness_kl_lag_{bucket}"]
        assert found == pytest.approx(only_noise.metrics["mismatch_kl"], rel=0.1)


def test_ratios_have_mean_1_and_their_spread_lowers_the_effective_share(both: Recovered):
    # E_mu[pi / mu] = 1 whatever the policies; the effective share is 1 / E[ratio^2]
    assert both.metrics["mismatch_ratio_mean"] == pytest.approx(1.0, abs=0.005)
    assert both.metrics["staleness_ratio_mean"] == pytest.approx(1.0, abs=0.01)
    # For small KL, E[ratio^2] = 1 + 2 KL
    assert both.metrics["mismatch_effective_share"] == pytest.approx(1 / (1 + 2 * both.true_kl[0]), abs=0.003)
    assert both.metrics["staleness_effective_share"] < both.metrics["mismatch_effective_share"]
    assert both.metrics["staleness_ratio_max"] > both.metrics["mismatch_ratio_max"] > 1.0
    assert both.metrics["max_importance_ratio"] == both.metrics["staleness_ratio_max"]


def test_effective_shares_caps_and_largest_ratios_are_told_by_staleness():
    ratios = {0: [1.0, 1.2], 1: [1.0, 3.0], 4: [0.5, 0.5, 2.5], 9: [1.5]}
    logs = [math.log(ratio) for own in ratios.values() for ratio in own]
    inputs = make_inputs(current=[-4.0] * len(logs), behavior=[-4.0 - log for log in logs])
    metrics = diagnose(inputs, lags=[lag for lag, own in ratios.items() for _ in own])
    for lag, bucket in BUCKETS.items():
        own = ratios.get(lag if lag < 8 else 9, [])
        if not own:
            assert math.isnan(metrics[f"staleness_ratio_max_lag_{bucket}"])
            assert math.isnan(metrics[f"staleness_effective_share_lag_{bucket}"])
            continue
        wanted = sum(own) ** 2 / (len(own) * sum(ratio**2 for ratio in own))
        assert metrics[f"staleness_effective_share_lag_{bucket}"] == pytest.approx(wanted, rel=1e-5)
        assert metrics[f"staleness_ratio_max_lag_{bucket}"] == pytest.approx(max(own), rel=1e-5)
        capped = sum(ratio >= 2.0 for ratio in own) / len(own)
        assert metrics[f"staleness_capped_share_lag_{bucket}"] == pytest.approx(capped)
    every = [ratio for own in ratios.values() for ratio in own]
    wanted = sum(every) ** 2 / (len(every) * sum(ratio**2 for ratio in every))
    assert metrics["token_effective_share"] == pytest.approx(wanted, rel=1e-5)


def test_staleness_of_a_long_response_is_shown_where_it_is():
    # Four tokens each; the last quarter is one version older, its ratio e^0.4.
    inputs = make_inputs(
        current=[-1.0] * 8,
        behavior=[-1.0, -1.0, -1.0, -1.4, -1.0, -1.0, -1.0, -1.4],
        sequence_ids=[0, 0, 0, 0, 1, 1, 1, 1],
    )
    metrics = diagnose(inputs, lags=[0, 0, 0, 1] * 2)
    k3 = 2.718281828**0.4 - 1 - 0.4
    assert metrics["staleness_kl_quarter_4"] == pytest.approx(k3, rel=1e-5)
    assert [metrics[f"mismatch_kl_quarter_{q}"] for q in (1, 2, 3)] == [0.0, 0.0, 0.0]
    assert metrics["mismatch_kl_quarter_4"] != metrics["mismatch_kl_quarter_4"]  # no fresh token is there


def test_quarters_count_from_the_start_of_each_response():
    ids = torch.tensor([0] * 8 + [1] * 3 + [3])
    assert response_quarters(ids, 4).tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 0, 1, 2, 0]


def test_tokens_are_of_the_kind_of_their_lag():
    lags = torch.tensor([0, 0, 1, 2, 3, 4, 7, 8, 15, 16, 900])
    continued = torch.tensor([False, True] + [False] * 8 + [True])
    names = [KINDS[i] for i in token_kinds(lags, continued)]
    wanted = ["fresh", "continued", "1", "2_3", "2_3", "4_7", "4_7", "8_15", "8_15", "16_up", "16_up"]
    assert names == wanted


def diagnose(inputs, *, lags: list[int], algorithm: Algorithm | None = None) -> dict[str, float]:
    algorithm = algorithm or Algorithm()
    size = len(lags)
    micro = dataclasses.replace(
        make_micro_batch(random_batch(0).sequences[:1], 0),
        behavior=inputs.behavior,
        lags=torch.tensor(lags),
        are_continued=torch.zeros(size, dtype=torch.bool),
    )
    parts = make_loss(algorithm, max_new_tokens=size)(inputs)
    sums = micro_batch_sums(inputs, parts, micro, algorithm=algorithm)
    return step_diagnostics(*sums)


RECORDED = {
    "surrogate": sorted(SURROGATES),
    "importance_weight": ["truncated", "masked", "sequence_truncated"],
}


@pytest.mark.parametrize("weight", RECORDED["importance_weight"])
@pytest.mark.parametrize("surrogate", RECORDED["surrogate"])
def test_the_diagnostics_of_a_step_are_those_of_its_tokens_one_by_one(surrogate: str, weight: str):
    """Several micro-batches against plain loops over all their tokens."""
    algorithm = Algorithm(
        surrogate={"name": "ppo_clip", "dual_clip": 1.3} if surrogate == "ppo_clip" else surrogate,
        importance_weight=weight if weight == "masked" else {"name": weight, "cap": 1.2},
        rejection=[{"name": "geometric_mean", "low": 0.8, "high": 1.25}, {"name": "token_veto", "low": 0.6}],
        mask_low=0.7,
        clip_low=0.1,
        clip_high=0.15,
    )
    batch, tally = random_batch(2, num_groups=6, group_size=4), Tally()
    objective, tokens = Objective(algorithm, max_new_tokens=12, mask_staleness=1), []
    generator = torch.Generator().manual_seed(5)
    for micro in rank_micro_batches(batch, budget_tokens=30, rank=0, num_ranks=1):
        noise = torch.randn(2, len(micro.targets), generator=generator)
        proximal = micro.behavior + 0.3 * noise[0]
        current = (proximal + 0.2 * noise[1]).requires_grad_()
        entropies = torch.zeros_like(current)
        _, (sums, maxima, _) = objective(micro, (current, entropies), proximal=proximal)
        tally.add(sums, maxima)
        for i in range(int(micro.sequence_ids.max()) + 1):
            own = (micro.sequence_ids == i) & (micro.lags <= 1)
            columns = (current, proximal, micro.behavior, micro.advantages)
            tokens.append(list(zip(*(column[own].tolist() for column in columns), strict=True)))
    metrics = tally.metrics()
    wanted = brute_force([sequence for sequence in tokens if sequence], algorithm)
    # Some surrogates clip nothing; every other share is of some tokens and not of all.
    for name, value in wanted.items():
        assert metrics[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name
        if name.endswith("share") and not (surrogate in CLIPLESS and name == "clipped_share"):
            assert 0 < value < 1 or (name == "capped_share" and weight == "masked"), name


def brute_force(sequences: list[list[tuple[float, float, float, float]]], a: Algorithm) -> dict[str, float]:
    """Of sequences of tokens that count: (current, proximal, behavior, advantage) each."""
    rows, totals = [], []
    correction, surrogate = a.importance_weight.name, a.surrogate.name
    cap = getattr(a.importance_weight, "cap", None)
    mean_range, veto = chosen(a.rejection, GeometricMean), chosen(a.rejection, TokenVeto)
    dual_clip = a.surrogate.dual_clip if surrogate == "ppo_clip" else None
    for tokens in sequences:
        logs = [proximal - behavior for _, proximal, behavior, _ in tokens]
        totals.append(sum(logs))
        mean = math.exp(sum(logs) / len(logs))
        is_kept = mean_range.low <= mean <= mean_range.high and min(logs) >= math.log(veto.low)
        weights, capped = [], []
        for log in logs:
            rho = math.exp(sum(logs) if correction == "sequence_truncated" else log)
            is_inside = a.mask_low <= rho <= a.mask_high
            rho = (rho if is_inside else 0.0) if correction == "masked" else min(rho, cap)
            weights.append(rho if is_kept else 0.0)
            capped.append(correction != "masked" and is_kept and rho == cap)
        live = [t for t, weight in enumerate(weights) if weight]
        geometric = math.exp(sum(math.log(weights[t]) for t in live) / len(live)) if live else 0.0
        moved = [current - proximal for current, proximal, _, _ in tokens]
        of_sequence = math.exp(sum(moved[t] for t in live) / len(live)) if live else 1.0
        for t, (_, _, _, advantage) in enumerate(tokens):
            ratio = of_sequence if surrogate == "gspo" else math.exp(moved[t])
            low, high = 1 - a.clip_low, 1 + a.clip_high
            is_clipped = (advantage > 0 and ratio > high) or (advantage < 0 and ratio < low)
            is_clipped |= dual_clip is not None and advantage < 0 and ratio > dual_clip
            if surrogate == "cispo":
                is_clipped = not low <= ratio <= high
            is_clipped &= surrogate not in CLIPLESS and weights[t] > 0
            applied = geometric if surrogate == "gmpo" and weights[t] else weights[t]
            rows.append((logs[t], moved[t], weights[t] == 0, capped[t], is_clipped, applied))
    size = len(rows)
    return {
        "num_tokens": size,
        "capped_share": sum(row[3] for row in rows) / size,
        "masked_share": sum(row[2] for row in rows) / size,
        "clipped_share": sum(row[4] for row in rows) / size,
        "weight_mean": sum(row[5] for row in rows) / size,
        "weight_effective_share": sum(row[5] for row in rows) ** 2
        / (size * sum(row[5] ** 2 for row in rows)),
        "chi_square": sum(math.exp(2 * row[0]) for row in rows) / size - 1,
        "mean_importance_ratio": sum(math.exp(row[0]) for row in rows) / size,
        "policy_kl": sum(math.exp(row[1]) - 1 - row[1] for row in rows) / size,
        "sequence_log_ratio_mean": sum(totals) / len(totals),
        "sequence_log_ratio_absolute_mean": sum(map(abs, totals)) / len(totals),
        "sequence_log_ratio_max": max(map(abs, totals)),
        "sequence_effective_share": sum(map(math.exp, totals)) ** 2
        / (len(totals) * sum(math.exp(2 * total) for total in totals)),
        "sequence_chi_square": sum(math.exp(2 * total) for total in totals) / len(totals) - 1,
    }


def test_of_a_surrogate_of_ones_own_the_clipped_share_is_no_number(tmp_path: Path):
    (tmp_path / "own.py").write_text(
        "def loss(inputs, algorithm): return -inputs.advantages * inputs.current\n"
    )
    algorithm = Algorithm(surrogate=f"{tmp_path}/own.py:loss")
    metrics = diagnose(make_inputs(current=[-1.0] * 2), lags=[0] * 2, algorithm=algorithm)
    assert math.isnan(metrics["clipped_share"]) and metrics["masked_share"] == 0.0
