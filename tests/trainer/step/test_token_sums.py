"""Effective samples of sequences and shares of the gradient by quadrant, against the formulas written out."""

import dataclasses
import math
from pathlib import Path

import pytest
import torch
from fakes.learners import make_learner
from fakes.loss_inputs import gradient, make_inputs
from fakes.models import random_batch

from asyncrl.algorithms.inputs import sequence_sum
from asyncrl.algorithms.losses import make_loss
from asyncrl.recipe import Algorithm
from asyncrl.trainer.step.token_sums import (
    MAX_SEQUENCE_LOG_RATIO,
    NUM_EFFECTIVE_SUMS,
    NUM_QUADRANT_SUMS,
    QUADRANTS,
    effective_metrics,
    effective_share,
    effective_sums,
    oldest_lags,
    quadrant_metrics,
    quadrant_sums,
    watch_quadrants,
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


PROBABILITIES = [0.9, 0.6, 0.5, 0.4, 0.1, 0.2, 0.8]
ADVANTAGES = [1.0, -2.0, 3.0, 0.5, -1.0, 0.0, 4.0]
MASK = [True, True, True, True, True, True, False]
BY_HAND = ["likely_positive", "likely_negative", "likely_positive", "unlikely_positive", "unlikely_negative"]
"""Quadrants of the first five tokens; the sixth has no advantage, the seventh does not count."""


def quadrant_inputs():
    logs = [math.log(p) for p in PROBABILITIES]
    behavior = [log - 0.3 for log in logs]
    return make_inputs(
        current=logs, behavior=behavior, advantages=ADVANTAGES, mask=MASK, reference=[-1.0] * 7
    )


def test_shares_are_those_of_the_derivatives_of_the_loss():
    inputs, algorithm = quadrant_inputs(), Algorithm(kl={"coefficient": 0.1})
    slopes = gradient(make_loss(algorithm, max_new_tokens=8)(inputs).total, inputs)
    wanted = dict.fromkeys(QUADRANTS, 0.0)
    for name, slope in zip(BY_HAND, slopes, strict=False):
        wanted[name] += abs(slope)
    inputs = quadrant_inputs()
    sums = quadrant_sums(inputs)
    watch_quadrants(inputs, sums)
    make_loss(algorithm, max_new_tokens=8)(inputs).total.backward()
    found = quadrant_metrics(sums)
    for name in QUADRANTS:
        assert found[f"gradient_share_{name}"] == pytest.approx(wanted[name] / sum(wanted.values()), rel=1e-5)
        assert found[f"token_share_{name}"] == BY_HAND.count(name) / 5


def test_without_a_backward_pass_tokens_have_shares_and_the_gradient_has_none():
    inputs = quadrant_inputs()
    inputs = dataclasses.replace(inputs, current=inputs.current.detach())
    sums = quadrant_sums(inputs)
    watch_quadrants(inputs, sums)
    found = quadrant_metrics(sums)
    assert found["token_share_likely_positive"] == 2 / 5
    assert math.isnan(found["gradient_share_likely_positive"])
    assert all(math.isnan(value) for value in quadrant_metrics(torch.zeros(NUM_QUADRANT_SUMS)).values())


def test_a_step_has_the_same_shares_however_packed_and_they_add_up(folder: Path):
    batch = random_batch(3, num_groups=6, num_silent=2)
    found = [
        make_learner(folder, trainer={"tokens_per_micro_batch": budget, "optimizer_steps_per_batch": 2}).step(
            batch
        )
        for budget in (8192, 30)
    ]
    for kind in ("token", "gradient"):
        names = [f"{kind}_share_{name}" for name in QUADRANTS]
        assert sum(found[0][name] for name in names) == pytest.approx(1.0)
        assert [found[0][name] for name in names] == pytest.approx(
            [found[1][name] for name in names], rel=1e-5
        )
    assert found[0]["gradient_share_unlikely_positive"] > 0.0
