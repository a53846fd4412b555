"""Rejections on ratios that can be worked out by hand."""

import math

from fakes.loss_inputs import make_inputs

from asyncrl.algorithms.rejections import geometric_mean, second_moment, token_range, token_veto
from asyncrl.recipe import Algorithm

DEFAULT = Algorithm()


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
    inputs = make_inputs(current=[-1.0] * 4, behavior=[-1.1, -1.5, -1.2, -0.7])
    assert second_moment(inputs, DEFAULT).tolist() == [True, False, True, False]


def test_the_second_moment_is_of_each_sequence_by_itself():
    inputs = make_inputs(current=[-1.0] * 4, behavior=[-1.1, -1.5, -1.5, -1.0], sequence_ids=[0, 0, 1, 1])
    # 0.01 and (0.01 + 0.25) / 2 = 0.13; then 0 and (0 + 0.25) / 2 = 0.125
    assert second_moment(inputs, DEFAULT).tolist() == [True, False, False, True]


def test_what_the_second_moment_keeps_is_within_its_limit_over_the_whole_batch():
    behavior = [-1.0 - 0.07 * (i * 7 % 11) for i in range(30)]
    inputs = make_inputs(current=[-1.0] * 30, behavior=behavior, sequence_ids=[i // 6 for i in range(30)])
    kept = [
        (1.0 + mu) ** 2 for mu, keep in zip(behavior, second_moment(inputs, DEFAULT), strict=True) if keep
    ]
    assert 0 < len(kept) < 30
    assert sum(kept) / len(kept) <= DEFAULT.second_moment_limit


def test_a_token_that_does_not_count_thins_out_no_second_moment():
    # 0.01 alone is kept; with a zero beside it 0.06 would pass as well
    inputs = make_inputs(current=[-1.0] * 3, behavior=[-1.0, -1.1, -1.3], mask=[False, True, True])
    assert second_moment(inputs, DEFAULT).tolist()[1:] == [True, False]


def test_one_impossible_token_vetoes_its_sequence_only():
    # ratio e^-10 = 4.5e-5 < 1e-4
    inputs = make_inputs(
        current=[-11.0, -1.0, -1.0, -3.0], behavior=[-1.0, -1.0, -1.0, -1.0], sequence_ids=[0, 0, 1, 1]
    )
    assert token_veto(inputs, DEFAULT).tolist() == [False, False, True, True]


def test_a_token_that_does_not_count_vetoes_nothing():
    inputs = make_inputs(current=[-30.0, -1.0], behavior=[-1.0, -1.0], mask=[False, True])
    assert token_veto(inputs, DEFAULT)[1].item()


def test_an_impossible_ratio_is_no_number_that_spreads():
    inputs = make_inputs(current=[-1.0, -1.0], behavior=[-1000.0, -1.0])
    assert math.isfinite(second_moment(inputs, DEFAULT).sum().item())
    assert second_moment(inputs, DEFAULT).tolist() == [False, True]
