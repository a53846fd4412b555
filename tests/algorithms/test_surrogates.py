"""Surrogates: values and gradients worked out by hand."""

import math

import pytest
from fakes.loss_inputs import gradient, make_inputs

from asyncrl.algorithms.surrogates import SURROGATES, cispo, gmpo, gspo, ppo_clip, reinforce, sapo
from asyncrl.recipe import Algorithm

DEFAULT = Algorithm(clip_high=0.2)
SAPO = Algorithm(surrogate="sapo")


def test_reinforce_is_minus_advantage_times_log_prob():
    inputs = make_inputs(current=[-0.5, -2.0], advantages=[2.0, -1.0])
    losses = reinforce(inputs, DEFAULT)
    assert losses.tolist() == [1.0, -2.0]
    assert gradient(losses.sum(), inputs) == [-2.0, 1.0]


def test_ppo_clips_a_ratio_that_moved_far_in_the_direction_of_its_advantage():
    # ratios e^0.5 = 1.65 (above 1.2), e^-0.5 = 0.61 (below 0.8), then the same with the other sign
    inputs = make_inputs(
        current=[-0.5, -1.5, -0.5, -1.5],
        proximal=[-1.0, -1.0, -1.0, -1.0],
        advantages=[1.0, -1.0, -1.0, 1.0],
    )
    losses = ppo_clip(inputs, DEFAULT)
    up, down = math.exp(0.5), math.exp(-0.5)
    assert losses.tolist() == pytest.approx([-1.2, 0.8, up, -down])
    # d(-r A)/d log pi = -r A where the clip does not bind, else 0
    assert gradient(losses.sum(), inputs) == pytest.approx([0.0, 0.0, up, -down])


def test_dual_clip_bounds_the_loss_of_a_negative_advantage():
    # ratio e^2 = 7.4 with A = -0.5: the loss 3.69 is cut at 3 x 0.5, and with it the gradient
    algorithm = Algorithm(surrogate={"name": "ppo_clip", "dual_clip": 3.0})
    inputs = make_inputs(current=[-0.1, -0.9], proximal=[-2.1, -1.0], advantages=[-0.5, -0.5])
    losses = ppo_clip(inputs, algorithm)
    assert losses.tolist() == pytest.approx([1.5, 0.5 * math.exp(0.1)])
    assert gradient(losses.sum(), inputs) == pytest.approx([0.0, 0.5 * math.exp(0.1)])


def test_gspo_gives_each_token_the_geometric_mean_ratio_of_its_sequence():
    # log-ratios 0.1 and 0.05: s = e^0.075 = 1.078, inside [0.8, 1.2]; ds / dlog pi_t = s / 2
    inputs = make_inputs(current=[-0.9, -0.95], proximal=[-1.0, -1.0], advantages=[2.0, 2.0])
    losses = gspo(inputs, DEFAULT)
    s = math.exp(0.075)
    assert losses.tolist() == pytest.approx([-2 * s, -2 * s])
    assert gradient(losses.sum() / 2, inputs) == pytest.approx([-2 * s / 2, -2 * s / 2])


def test_cispo_clips_the_weight_and_keeps_the_gradient():
    # ratio e^0.5 = 1.65, clipped to 1.2; the gradient of -sg[1.2] A log pi is -1.2 A
    inputs = make_inputs(current=[-0.5, -1.0], proximal=[-1.0, -1.0], advantages=[2.0, -1.0])
    losses = cispo(inputs, DEFAULT)
    assert losses.tolist() == pytest.approx([1.2 * 2 * 0.5, -1.0])
    assert gradient(losses.sum(), inputs) == pytest.approx([-2.4, 1.0])


def test_cispo_has_no_lower_bound_unless_asked():
    # ratio e^-1 = 0.37 is the weight as it is, 0.8 with clip_low 0.2
    inputs = make_inputs(current=[-2.0], proximal=[-1.0])
    assert gradient(cispo(inputs, Algorithm(surrogate="cispo")).sum(), inputs) == pytest.approx(
        [-math.exp(-1)]
    )
    assert gradient(cispo(inputs, Algorithm(clip_low=0.2)).sum(), inputs) == pytest.approx([-0.8])


def test_gmpo_clips_each_log_ratio_on_the_side_of_its_advantage_and_takes_the_geometric_mean():
    # A > 0: log-ratios 0.5 (clipped to log 1.2) and -0.5 (not clipped); mean (log 1.2 - 0.5) / 2
    inputs = make_inputs(current=[-0.5, -1.5], proximal=[-1.0, -1.0], advantages=[3.0, 3.0])
    losses = gmpo(inputs, DEFAULT)
    mean = math.exp((math.log(1.2) - 0.5) / 2)
    assert losses.tolist() == pytest.approx([-3 * mean, -3 * mean])
    # d/dlog pi_t of the mean over the two tokens: 0 where clipped, else -A mean / 2
    assert gradient(losses.sum() / 2, inputs) == pytest.approx([0.0, -3 * mean / 2])


def test_sapo_damps_a_ratio_on_both_sides_of_one():
    # Ratios 1.2, 0.5 and 0.5 with tau 1 for positive advantages and 1.05 for negative ones.
    ratios = [math.log(1.2), math.log(0.5), math.log(0.5)]
    inputs = make_inputs(current=ratios, proximal=[0.0] * 3)
    losses = sapo(inputs, SAPO)
    assert losses.tolist() == pytest.approx([-2.199336, -1.510163, -1.510163], abs=1e-6)
    assert gradient(losses.sum(), inputs) == pytest.approx([-1.188080, -0.470007, -0.470007], abs=1e-6)
    inputs = make_inputs(current=ratios, proximal=[0.0] * 3, advantages=[-1.0] * 3)
    assert gradient(sapo(inputs, SAPO).sum(), inputs) == pytest.approx(
        [1.186867, 0.467070, 0.467070], abs=1e-6
    )


def test_the_bound_of_cispo_against_the_behavior_policy_is_on_the_weight_alone():
    # p 0.4 sampled with m 0.05: a ratio of 8, cut to 5.
    inputs = make_inputs(current=[math.log(0.4)], behavior=[math.log(0.05)])
    algorithm = Algorithm(surrogate="cispo", clip_around="behavior", importance_weight="none", clip_high=4.0)
    losses = cispo(inputs, algorithm)
    assert losses.tolist() == pytest.approx([4.581454], abs=1e-6)
    assert gradient(losses.sum(), inputs) == pytest.approx([-5.0])


def test_gspo_with_one_advantage_clips_a_whole_sequence_or_none_of_it():
    # Ratios 1.2, 0.5 and 0.5: a geometric mean of 0.669, below 0.8 and so clipped where A is negative.
    logs = [math.log(r) for r in (1.2, 0.5, 0.5)]
    for advantage, slope in ((1.0, -0.223144), (-1.0, 0.0)):
        inputs = make_inputs(current=logs, proximal=[0.0] * 3, advantages=[advantage] * 3)
        assert gradient(gspo(inputs, DEFAULT).mean(), inputs) == pytest.approx([slope] * 3, abs=1e-6)


@pytest.mark.parametrize("surrogate", list(SURROGATES.values()))
def test_at_the_proximal_policy_every_surrogate_has_the_gradient_of_reinforce(surrogate):
    # With one step per batch and one advantage per sequence they differ in nothing.
    algorithm = SAPO if surrogate is sapo else DEFAULT
    inputs = make_inputs(current=[-0.5, -2.0, -1.0], advantages=[2.0, 2.0, -1.0], sequence_ids=[0, 0, 1])
    assert gradient(surrogate(inputs, algorithm).sum(), inputs) == pytest.approx([-2.0, -2.0, 1.0])
