"""Rejections on ratios that can be worked out by hand."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from fakes.loss_inputs import gradient, make_inputs, with_second_moment_bound

from asyncrl.algorithms.inputs import LossInputs
from asyncrl.algorithms.losses import make_loss
from asyncrl.algorithms.rejections import (
    TRUST_REGIONS,
    band,
    geometric_mean,
    kpop,
    off_policy_sequence,
    second_moment,
    second_moment_clip,
    sequence_kl,
    token_range,
    token_veto,
)
from asyncrl.recipe import Algorithm

DEFAULT = Algorithm(rejection=["geometric_mean", "second_moment", "token_veto"])


def test_the_token_range_keeps_ratios_inside_it():
    # ratios e^0.5 = 1.65, e^2 = 7.4, e^-1 = 0.37 and 1; range [0.5, 5]
    inputs = make_inputs(current=[-1.0, -1.0, -2.0, -1.0], behavior=[-1.5, -3.0, -1.0, -1.0])
    assert token_range(inputs, DEFAULT).tolist() == [True, False, False, True]


def test_the_geometric_mean_judges_a_sequence_whatever_its_length():
    # mean log-ratios: (0.3 - 0.3) / 2 = 0, kept; 0.02 over three tokens, e^0.02 > 1.01
    inputs = make_inputs(
        current=[-1.0] * 5, behavior=[-1.3, -0.7, -1.02, -1.02, -1.02], sequence_ids=[0, 0, 1, 1, 1]
    )
    assert geometric_mean(inputs, DEFAULT).tolist() == [True, True, False, False, False]


def test_the_second_moment_drops_the_largest_until_the_mean_is_within_its_limit():
    # squared log-ratios 0.01, 0.25, 0.04, 0.09: means of the smallest 1, 2, 3 are 0.01, 0.025, 0.0467 > 0.04
    inputs = make_inputs(current=[-1.0] * 4, behavior=[-1.1, -1.5, -1.2, -1.3])
    assert kept(inputs) == [True, False, True, False]


def test_the_second_moment_judges_only_tokens_that_move_away():
    # Log-ratios +-0.5: away where the sign is the advantage's; with an advantage of 0 nothing pushes.
    inputs = make_inputs(
        current=[-1.0] * 6,
        behavior=[-1.5, -0.5, -1.5, -0.5, -1.5, -0.5],
        advantages=[1.0, 1.0, -1.0, -1.0, 0.0, 0.0],
        sequence_ids=[0, 0, 1, 1, 2, 2],
    )
    assert kept(inputs) == [False, True, True, False, True, True]


def test_the_second_moment_is_of_the_whole_batch():
    # 0.01, 0.0625, 0.0625 and 0.01 in two sequences: the mean of all, 0.03625, is within the limit, that of
    # either sequence alone as well; with 0.0961 for the last, 0.0578 is not, and the largest alone must go.
    behavior = [-1.1, -1.25, -1.25, -1.1]
    inputs = make_inputs(current=[-1.0] * 4, behavior=behavior, sequence_ids=[0, 0, 1, 1])
    assert kept(inputs) == [True] * 4
    # (0.01 + 0.01 + 0.0961) / 3 = 0.0387: the second sequence alone, 0.0961, would lose its token.
    inputs = make_inputs(current=[-1.0] * 3, behavior=[-1.1, -1.1, -1.31], sequence_ids=[0, 0, 1])
    assert kept(inputs) == [True] * 3


def test_a_token_that_does_not_count_thins_out_no_second_moment():
    # 0.01 and 0.09, mean 0.05, is too much; with another 0.01 their 0.0367 would pass
    inputs = make_inputs(current=[-1.0] * 3, behavior=[-1.1, -1.1, -1.3], mask=[False, True, True])
    assert kept(inputs)[1:] == [True, False]


def kept(inputs: LossInputs) -> list[bool]:
    return second_moment(with_second_moment_bound(inputs, DEFAULT), DEFAULT).tolist()


def test_one_impossible_token_vetoes_its_sequence_only():
    # ratio e^-10 = 4.5e-5 < 1e-4
    inputs = make_inputs(
        current=[-11.0, -1.0, -1.0, -3.0], behavior=[-1.0, -1.0, -1.0, -1.0], sequence_ids=[0, 0, 1, 1]
    )
    assert token_veto(inputs, DEFAULT).tolist() == [False, False, True, True]


def test_an_impossible_ratio_is_no_number_that_spreads():
    inputs = make_inputs(current=[-1.0, -1.0], behavior=[-1000.0, -1.0])
    assert kept(inputs) == [False, True]


def test_the_sequence_kl_judges_whole_responses_by_the_binary_kl_of_their_tokens():
    # D(0.5, 0.6) = 0.020411, D(0.2, 0.1) = 0.044403, D(0.8, 0.4) = 0.334795, D(0.5, 0.5) = 0
    current, behavior = [0.6, 0.1, 0.4, 0.5], [0.5, 0.2, 0.8, 0.5]
    inputs = make_inputs(
        current=[math.log(p) for p in current],
        behavior=[math.log(m) for m in behavior],
        sequence_ids=[0, 0, 1, 1],
    )
    for limit, wanted in ((0.0324, [False] * 4), (0.0325, [True, True, False, False]), (0.168, [True] * 4)):
        algorithm = Algorithm(rejection=[{"name": "sequence_kl", "limit": limit}])
        assert sequence_kl(inputs, algorithm).tolist() == wanted, limit


BEHAVIOR, POLICY = (0.5, 0.2, 0.8), (0.6, 0.1, 0.4)
UNBOUNDED = {"clip_around": "behavior", "importance_weight": "none", "surrogate": "ratio"}
"""The loss is -A p / m, but for the trust region."""


def three_tokens(advantage: float) -> LossInputs:
    return make_inputs(
        current=[math.log(p) for p in POLICY],
        behavior=[math.log(m) for m in BEHAVIOR],
        advantages=[advantage] * 3,
    )


def slopes(advantage: float, **keys: Any) -> list[float]:
    inputs = three_tokens(advantage)
    parts = make_loss(Algorithm(**UNBOUNDED | keys), max_new_tokens=8)(inputs)
    return gradient(parts.total, inputs)


def test_dppo_stops_tokens_that_moved_far_in_the_direction_of_their_advantage():
    # p - m is 0.1, -0.1 and -0.4: only the third is beyond 0.15, and only a negative advantage pushes it.
    region = {"trust_region": [{"name": "dppo_tv", "limit": 0.15}]}
    assert slopes(-1.0, **region) == pytest.approx([1.2, 0.5, 0.0])
    assert slopes(1.0, **region) == pytest.approx([-1.2, -0.5, -0.5])
    # D(m, p) is 0.020411, 0.044403 and 0.334795.
    region = {"trust_region": [{"name": "dppo_kl", "limit": 0.0444}]}
    assert slopes(-1.0, **region) == pytest.approx([1.2, 0.0, 0.0])
    assert slopes(-1.0, trust_region=[{"name": "dppo_kl", "limit": 0.0445}]) == pytest.approx([1.2, 0.5, 0.0])
    assert slopes(1.0, trust_region=[{"name": "dppo_kl", "limit": 0.0204}]) == pytest.approx(
        [0.0, -0.5, -0.5]
    )


def test_a_band_masks_ratios_at_and_beyond_its_ends_whatever_the_advantage():
    # p / m is 1.2, 0.5 and 0.5: the loss of the first alone has a gradient, over a denominator of three.
    for advantage in (1.0, -1.0):
        found = slopes(advantage, trust_region=[{"name": "band", "low": 0.5, "high": 6.0}])
        assert found == pytest.approx([-1.2 * advantage, 0.0, 0.0])
    # twinkle's table: 0.7 and 6 are outside, 0.7001 and 5.999 inside.
    inputs = make_inputs(current=[math.log(r) - 3.0 for r in (0.7, 0.7001, 5.999, 6.0)], behavior=[-3.0] * 4)
    inside = band(inputs, Algorithm(trust_region=["band"])).tolist()
    assert inside[1:3] == [True, True] and inside[3] is False
    exact = make_inputs(current=[math.log(0.7), math.log(6.0)], behavior=[0.0, 0.0])
    assert band(exact, Algorithm(trust_region=["band"])).tolist() == [False, False]


def test_a_band_without_one_inside_is_refused():
    for bounds in ({"low": 1.0}, {"high": 1.0}):
        with pytest.raises(ValueError, match="low|high"):
            Algorithm(trust_region=[{"name": "band", **bounds}])


def test_dppo_with_a_cap_on_the_ratio_is_cispo_in_its_region():
    region = {"trust_region": ["dppo_tv"], "surrogate": "cispo", "clip_high": 0.1}
    assert slopes(1.0, **region) == pytest.approx([-1.1, -0.5, -0.5])


def test_the_divergence_from_the_behavior_policy_pulls_tokens_inside_and_outside():
    # The mean loss over the three is -0.733002 with 1e-3 (ln p / m)^2.
    inputs = three_tokens(1.0)
    keys = {"trust_region": [{"name": "dppo_tv", "limit": 0.2}], "behavior_kl_coefficient": 1e-3}
    parts = make_loss(Algorithm(**UNBOUNDED, **keys), max_new_tokens=8)(inputs)
    assert (parts.total / parts.denominator).item() == pytest.approx(-0.733002, abs=1e-6)
    assert gradient(parts.total, inputs) == pytest.approx([-1.199635, -0.501386, -0.501386], abs=1e-6)
    assert slopes(-1.0, **keys)[2] == pytest.approx(2e-3 * math.log(0.5))


def test_ipo_drops_what_left_its_region_whatever_the_advantage():
    inputs = three_tokens(1.0)
    keys = {"trust_region": [{"name": "ipo", "limit": 0.3}]}
    parts = make_loss(Algorithm(**UNBOUNDED, **keys), max_new_tokens=8)(inputs)
    assert (parts.total / parts.denominator).item() == pytest.approx(-0.566667, abs=1e-6)
    assert gradient(parts.total, inputs) == pytest.approx([-1.2, -0.5, 0.0])
    assert slopes(-1.0, **keys) == pytest.approx([1.2, 0.5, 0.0])


def test_kpop_takes_the_larger_of_both_binary_divergences():
    # 0.020411, 0.044403 and 0.381909; p 0.004 against m 0.001, a factor of four, is only 0.002550.
    bounds = [(0.0204, 0), (0.0205, 1), (0.0444, 1), (0.0445, 2), (0.3819, 2), (0.382, 3)]
    for limit, number in bounds:
        assert (
            sum(kpop(three_tokens(1.0), Algorithm(trust_region=[{"name": "kpop", "limit": limit}])).tolist())
            == number
        )
    rare = make_inputs(current=[math.log(0.004)], behavior=[math.log(0.001)])
    for limit, is_inside in ((0.00254, False), (0.00256, True)):
        assert kpop(rare, Algorithm(trust_region=[{"name": "kpop", "limit": limit}])).tolist() == [is_inside]


def test_an_off_policy_sequence_is_dropped_only_for_a_negative_advantage():
    # The mean of ln m / p is 0.401324.
    for limit, is_inside in ((0.1, False), (0.5, True)):
        algorithm = Algorithm(trust_region=[{"name": "off_policy_sequence", "limit": limit}])
        assert off_policy_sequence(three_tokens(-1.0), algorithm).tolist() == [is_inside] * 3
        assert off_policy_sequence(three_tokens(1.0), algorithm).tolist() == [True] * 3


def test_the_authors_second_moment_clips_where_the_papers_drops():
    # (log rho)^2 of 0.01, 0.04, 0.09 and 0.25: the largest tau holds 0.01 + 0.04 + 2 tau^2 = 4 x 0.04, which
    # is a ratio of 1.26; no range is tighter than 1.5, so that e^0.5 alone is beyond.
    inputs = make_inputs(current=[-1.0] * 4, behavior=[-1.1, -1.2, -1.3, -1.5])
    algorithm = Algorithm(trust_region=["second_moment_clip"])
    bounded = with_second_moment_bound(inputs, algorithm)
    assert bounded.second_moment_bound == pytest.approx(0.055, abs=1e-6)
    assert second_moment_clip(bounded, algorithm).tolist() == [True, True, True, False]
    paper = Algorithm(rejection=["second_moment"])
    assert second_moment(with_second_moment_bound(inputs, paper), paper).tolist() == [
        True,
        True,
        False,
        False,
    ]
    # A wider drift widens the range: 0.25 fits when it is the limit's mean.
    wide = Algorithm(trust_region=[{"name": "second_moment_clip", "limit": 0.0975}])
    assert second_moment_clip(with_second_moment_bound(inputs, wide), wide).tolist() == [True] * 4


def test_the_authors_second_moment_is_of_the_whole_drift_also_where_the_proximal_is_interpolated():
    # At a staleness of 1 the interpolated policy is mu itself: a ratio to it would bound nothing.
    inputs = make_inputs(current=[-1.0] * 4, behavior=[-1.1, -1.2, -1.3, -1.5])
    algorithm = Algorithm(trust_region=["second_moment_clip"], proximal="interpolated")
    fresh = dataclasses.replace(inputs, proximal=inputs.behavior, evaluated=inputs.current.detach())
    bounded = with_second_moment_bound(fresh, algorithm)
    assert bounded.second_moment_bound == pytest.approx(0.055, abs=1e-6)
    assert second_moment_clip(bounded, algorithm).tolist() == [True, True, True, False]
    # The rejection is of the interpolated ratio, as weights are.
    dropping = Algorithm(rejection=["second_moment"], proximal="interpolated")
    assert with_second_moment_bound(fresh, dropping).second_moment_bound == math.inf


def test_outside_a_region_kl_and_entropy_pull_and_the_denominator_stays():
    keys = {
        "trust_region": ["ipo"],
        "kl": {"coefficient": 0.5, "estimator": "k2"},
        "entropy_bonus": {"coefficient": 0.1},
    }
    inputs = make_inputs(
        current=[math.log(0.4)],
        behavior=[math.log(0.8)],
        reference=[math.log(0.2)],
        entropies=[0.7],
    )
    parts = make_loss(Algorithm(**UNBOUNDED, **keys), max_new_tokens=8)(inputs)
    own, entropy = torch.autograd.grad(parts.total, [inputs.current, inputs.entropies])
    assert own.tolist() == pytest.approx([0.5 * math.log(2)])
    assert entropy.tolist() == pytest.approx([-0.1])
    assert (parts.denominator.item(), parts.outside.tolist()) == (1, [True])


@pytest.mark.parametrize("name", sorted(TRUST_REGIONS))
def test_a_certain_or_an_impossible_token_is_judged_without_a_number_that_is_none(name: str):
    current, behavior = [0.0, -800.0, 0.0, -800.0, 1e-7], [0.0, -800.0, -800.0, 0.0, -1e-7]
    inputs = make_inputs(current=current, behavior=behavior, advantages=[1.0, 1.0, 1.0, -1.0, 1.0])
    algorithm = Algorithm(trust_region=[name])
    found = TRUST_REGIONS[name](with_second_moment_bound(inputs, algorithm), algorithm).tolist()
    if name == "second_moment_clip":
        # Its bound follows the two that moved by everything there is.
        assert found[:2] == [True, True] and not any(found[2:4])
    elif name != "off_policy_sequence":
        assert found == [True, True, False, False, True]
