"""Mismatch and staleness that were put in on purpose are found again, apart, and where they are."""

import dataclasses

import pytest
import torch
from fakes.injection import Injection, Recovered, recover
from fakes.loss_inputs import make_inputs
from fakes.models import random_batch

from asyncrl.algorithms.losses import make_loss
from asyncrl.recipe import Algorithm
from asyncrl.trainer.batch import make_micro_batch
from asyncrl.trainer.diagnostics import (
    KINDS,
    micro_batch_sums,
    response_quarters,
    step_diagnostics,
    token_kinds,
)

BUCKETS = {1: "1", 2: "2_3", 4: "4_7", 8: "8_15"}


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
    assert response_quarters(ids).tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 0, 1, 2, 0]


def test_tokens_are_of_the_kind_of_their_lag():
    lags = torch.tensor([0, 0, 1, 2, 3, 4, 7, 8, 15, 16, 900])
    continued = torch.tensor([False, True] + [False] * 8 + [True])
    names = [KINDS[i] for i in token_kinds(lags, continued)]
    wanted = ["fresh", "continued", "1", "2_3", "2_3", "4_7", "4_7", "8_15", "8_15", "16_up", "16_up"]
    assert names == wanted


def test_what_the_loss_did_is_counted():
    # Ratios to behavior e^1 (capped at 2) and e^3 (out of the range, masked) and 1 (twice); the policy ratio
    # e^0.5 is over 1.2 with a positive advantage, e^-0.5 is not clipped for it.
    algorithm = Algorithm(rejection=["token_range"])
    inputs = make_inputs(
        current=[-1.0, -1.0, -0.5, -1.5], proximal=[-1.0] * 4, behavior=[-2.0, -4.0, -1.0, -1.0]
    )
    metrics = diagnose(inputs, lags=[0] * 4, algorithm=algorithm)
    assert metrics["capped_share"] == 1 / 4
    assert metrics["masked_share"] == 1 / 4
    assert metrics["clipped_share"] == 1 / 4
    # k3 of log-ratios 0.5 and -0.5 over four tokens
    assert metrics["policy_kl"] == pytest.approx((2.718281828**0.5 + 2.718281828**-0.5 - 2) / 4, rel=1e-5)


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
