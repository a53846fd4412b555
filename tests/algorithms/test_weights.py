"""Importance weights on ratios that can be worked out by hand."""

import math

import pytest
from fakes.loss_inputs import make_inputs

from asyncrl.algorithms.weights import masked, none, sequence_masked, sequence_truncated, truncated
from asyncrl.recipe import Algorithm

DEFAULT = Algorithm()


def test_the_truncated_weight_is_the_ratio_up_to_the_cap():
    # ratios e^0.5 = 1.6487, e^1 = 2.718 and e^-1 = 0.3679; cap 2
    inputs = make_inputs(current=[-1.0, -1.0, -2.0], behavior=[-1.5, -2.0, -1.0])
    assert truncated(inputs, DEFAULT).tolist() == pytest.approx([math.exp(0.5), 2.0, math.exp(-1)])


def test_the_truncated_weight_compares_the_proximal_policy_not_the_current_one():
    inputs = make_inputs(current=[-9.0], proximal=[-1.0], behavior=[-1.5])
    assert truncated(inputs, DEFAULT).tolist() == pytest.approx([math.exp(0.5)])


def test_no_weight_is_one_however_stale_the_token():
    inputs = make_inputs(current=[-1.0, -9.0], behavior=[-9.0, -1.0])
    assert none(inputs, DEFAULT).tolist() == [1.0, 1.0]


def test_a_sequence_weight_is_the_product_of_its_ratios_up_to_the_cap():
    # sequence 0: e^0.5 e^-0.2 = e^0.3; sequence 1: e^1 e^1, capped at 2
    inputs = make_inputs(
        current=[-1.0, -1.0, -1.0, -1.0], behavior=[-1.5, -0.8, -2.0, -2.0], sequence_ids=[0, 0, 1, 1]
    )
    wanted = [math.exp(0.3), math.exp(0.3), 2.0, 2.0]
    assert sequence_truncated(inputs, DEFAULT).tolist() == pytest.approx(wanted)


def test_a_token_that_does_not_count_is_not_in_the_product():
    inputs = make_inputs(current=[-1.0, -1.0], behavior=[-1.5, -9.0], mask=[True, False])
    assert sequence_truncated(inputs, DEFAULT)[0].item() == pytest.approx(math.exp(0.5))


def test_the_masked_weight_is_the_ratio_inside_its_range_and_zero_outside():
    # ratios e^0.5 = 1.65 (inside [0.5, 5]), e^2 = 7.4 and e^-1 = 0.37
    inputs = make_inputs(current=[-1.0, -1.0, -2.0], behavior=[-1.5, -3.0, -1.0])
    assert masked(inputs, DEFAULT).tolist() == pytest.approx([math.exp(0.5), 0.0, 0.0])


def test_a_sequence_whose_product_is_over_the_cap_weighs_nothing():
    # products e^0.3 and e^1 = 2.7 > 2
    inputs = make_inputs(
        current=[-1.0, -1.0, -1.0, -1.0], behavior=[-1.5, -0.8, -1.5, -1.5], sequence_ids=[0, 0, 1, 1]
    )
    assert sequence_masked(inputs, DEFAULT).tolist() == pytest.approx([math.exp(0.3)] * 2 + [0.0] * 2)


def test_the_product_over_a_very_long_sequence_stays_finite():
    inputs = make_inputs(current=[-1.0] * 500, behavior=[-2.0] * 500)
    assert sequence_truncated(inputs, Algorithm(importance_cap=1e30))[0].item() == pytest.approx(math.exp(20))


def test_truncated_weights_may_have_a_lower_bound():
    # ratios e^0.5 and e^-1 = 0.3679, then prod e^-0.5 = 0.607; floor 0.7
    floor = Algorithm(importance_floor=0.7)
    inputs = make_inputs(current=[-1.0, -2.0], behavior=[-1.5, -1.0])
    assert truncated(inputs, floor).tolist() == pytest.approx([math.exp(0.5), 0.7])
    assert sequence_truncated(inputs, floor).tolist() == pytest.approx([0.7, 0.7])
