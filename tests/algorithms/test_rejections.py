"""Rejections on ratios that can be worked out by hand."""

import math

from fakes.loss_inputs import make_inputs, with_second_moment_bound

from asyncrl.algorithms.inputs import LossInputs
from asyncrl.algorithms.rejections import (
    geometric_mean,
    second_moment,
    sequence_kl,
    token_range,
    token_veto,
)
from asyncrl.recipe import Algorithm
from asyncrl.recipe.algorithm_terms import SecondMoment
from asyncrl.recipe.terms import chosen

DEFAULT = Algorithm(rejection=["geometric_mean", "second_moment", "token_veto"])
LIMIT = chosen(DEFAULT.rejection, SecondMoment).limit


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


def test_what_the_second_moment_keeps_is_within_its_limit_and_one_more_would_not_be():
    behavior = [-1.0 - 0.07 * (i * 7 % 11) for i in range(30)]
    inputs = make_inputs(current=[-1.0] * 30, behavior=behavior, sequence_ids=[i // 6 for i in range(30)])
    squares = sorted((1.0 + mu) ** 2 for mu in behavior)
    number = sum(kept(inputs))
    assert 0 < number < 30
    assert sum(squares[:number]) / number <= LIMIT
    # The next one, and those that equal it.
    more = sum(square <= squares[number] + 1e-6 for square in squares)
    assert sum(squares[:more]) / more > LIMIT


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
