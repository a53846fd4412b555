"""The effective sample size of sequences against the formula written out."""

import dataclasses
import math

import pytest
import torch
from fakes.loss_inputs import make_inputs

from asyncrl.algorithms.inputs import sequence_sum
from asyncrl.trainer.step.token_sums import (
    MAX_SEQUENCE_LOG_RATIO,
    NUM_EFFECTIVE_SUMS,
    effective_metrics,
    effective_share,
    effective_sums,
    oldest_lags,
)


def sums_of(log_ratios: list[float], ids: list[int], lags: list[int], mask: list[bool] | None = None):
    inputs = make_inputs(current=[-1.0] * len(ids), mask=mask)
    inputs = dataclasses.replace(
        inputs, sequence_ids=torch.tensor(ids, dtype=torch.int64), mask=inputs.mask.bool()
    )
    totals = sequence_sum(torch.tensor(log_ratios, dtype=torch.float64), inputs)
    oldest = oldest_lags(inputs, torch.tensor(lags, dtype=torch.int64), len(totals))
    are_there = (sequence_sum(inputs.mask.double(), inputs) > 0).double()
    return effective_sums(totals, oldest, are_there)


def test_weights_of_3_and_three_times_1_are_three_effective_sequences_of_four():
    found = sums_of([math.log(1.5), math.log(2.0), 0.0, 0.0, 0.0], [0, 0, 1, 2, 3], [0] * 5)
    assert effective_share(found) == pytest.approx(3 / 4)
    # The factor of trainer.learning_rate_scaling.
    assert math.sqrt(effective_share(found)) == pytest.approx(0.866025, abs=1e-6)


def test_sequences_are_of_the_staleness_of_their_oldest_token_that_counts():
    weights = {0: [1.0, 2.0], 1: [5.0], 4: [1.0, 1.0, 4.0]}
    ids, log_ratios, lags, mask = [], [], [], []
    for lag, own in weights.items():
        for weight in own:
            # The older token does not count.
            log_ratios += [math.log(weight), 9.0]
            ids += [len(ids) // 2] * 2
            lags += [lag, 30]
            mask += [True, False]
    found = effective_metrics(sums_of(log_ratios, ids, lags, mask))
    for lag, bucket in ((0, "0"), (1, "1"), (4, "4_7")):
        own = weights[lag]
        wanted = sum(own) ** 2 / (len(own) * sum(w**2 for w in own))
        assert found[f"staleness_sequence_effective_share_lag_{bucket}"] == pytest.approx(wanted), bucket
    every = [weight for own in weights.values() for weight in own]
    assert found["sequence_effective_share"] == pytest.approx(
        sum(every) ** 2 / (len(every) * sum(w**2 for w in every))
    )
    assert math.isnan(found["staleness_sequence_effective_share_lag_2_3"])


def test_parts_of_a_batch_add_up_and_a_part_without_tokens_adds_nothing():
    whole = sums_of([0.3, -0.5, 1.0, 0.2], [0, 0, 1, 2], [0, 1, 3, 0])
    parts = sums_of([0.3, -0.5], [0, 0], [0, 1]) + sums_of([1.0, 0.2], [0, 1], [3, 0])
    assert torch.allclose(whole, parts)
    assert torch.equal(sums_of([], [], []), torch.zeros(NUM_EFFECTIVE_SUMS, dtype=torch.float64))
    assert math.isnan(effective_share(torch.zeros(NUM_EFFECTIVE_SUMS, dtype=torch.float64)))


def test_one_sequence_far_beyond_any_cap_is_one_effective_sequence():
    # At a bound of 20 both would weigh the same, as if all were well.
    found = sums_of([30.0, 60.0, 0.0, 0.0], [0, 1, 2, 3], [0] * 4)
    assert effective_share(found) == pytest.approx(1 / 4)
    assert math.isfinite(effective_share(sums_of([9 * MAX_SEQUENCE_LOG_RATIO, 0.0], [0, 1], [0] * 2)))
