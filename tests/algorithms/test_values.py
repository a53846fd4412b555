"""Generalised advantages and the value loss, by hand."""

import pytest
import torch
from torch import Tensor

from asyncrl.algorithms.values import (
    chained,
    clipped_value_loss,
    continued,
    end_rewards,
    generalised_advantages,
    length_adaptive_lambda,
    v_trace,
)

REWARDS = torch.tensor([0.0, 0.0, 1.0, 0.5])
VALUES = torch.tensor([0.5, 0.25, 0.75, 0.125])
SEQUENCES = torch.tensor([0, 0, 0, 1])


def advantages(gamma: float, gae_lambda: float) -> Tensor:
    return generalised_advantages(REWARDS, VALUES, SEQUENCES, gamma=gamma, gae_lambda=gae_lambda)


def test_advantages_are_those_computed_by_hand():
    # gamma 0.8: deltas 0.8 x 0.25 - 0.5 = -0.3; 0.8 x 0.75 - 0.25 = 0.35; 1 - 0.75 = 0.25; then 0.375.
    # gamma x lambda 0.4: 0.35 + 0.4 x 0.25 = 0.45; -0.3 + 0.4 x 0.45 = -0.12.
    assert advantages(0.8, 0.5).tolist() == pytest.approx([-0.12, 0.45, 0.25, 0.375])


def test_long_sequences_match_the_recursion_and_packing_changes_no_bit():
    generator = torch.Generator().manual_seed(0)
    lengths, wanted, alone, together = (37, 1, 64, 5), [], [], ([], [], [])
    for i, length in enumerate(lengths):
        rewards, values = torch.randn(2, length, generator=generator)
        later, following, found = 0.0, 0.0, []
        for reward, value in zip(reversed(rewards.tolist()), reversed(values.tolist()), strict=True):
            later = reward + 0.99 * following - value + 0.99 * 0.95 * later
            following = value
            found.append(later)
        wanted += reversed(found)
        ids = torch.full((length,), i)
        alone.append(generalised_advantages(rewards, values, ids * 0, gamma=0.99, gae_lambda=0.95))
        for parts, part in zip(together, (rewards, values, ids), strict=True):
            parts.append(part)
    packed = generalised_advantages(*map(torch.cat, together), gamma=0.99, gae_lambda=0.95)
    assert packed.tolist() == pytest.approx(wanted, abs=1e-5)
    assert torch.equal(packed, torch.cat(alone))


THREE_VALUES, LAST = torch.tensor([0.5, 0.6, 0.8]), torch.tensor([0.0, 0.0, 1.0])
RATIOS = torch.tensor([1.2, 0.5, 0.5])


def test_v_trace_is_that_computed_by_hand():
    # c 1, 0.5, 0.5. v_3 = 0.8 + 0.5 x 0.2 = 0.9; v_2 = 0.6 + 0.5 x 0.2 + 0.5 x 0.1 = 0.75;
    # v_1 = 0.5 + 0.1 + 0.15 = 0.75. A: 0.75 - 0.5, 0.9 - 0.6, 1 - 0.8; times c 0.25, 0.15, 0.1.
    ids = torch.zeros(3, dtype=torch.long)
    targets, found = v_trace(LAST, THREE_VALUES, RATIOS, ids, gamma=1.0, gae_lambda=1.0, cap=1.0)
    assert targets.tolist() == pytest.approx([0.75, 0.75, 0.9])
    assert (found * RATIOS.clamp(max=1.0)).tolist() == pytest.approx([0.25, 0.15, 0.1])
    gae = generalised_advantages(LAST, THREE_VALUES, ids, gamma=1.0, gae_lambda=2 / 3)
    assert gae.tolist() == pytest.approx([0.322222, 0.333333, 0.2], abs=1e-6)


@pytest.mark.parametrize(("gamma", "gae_lambda"), [(1.0, 1.0), (0.9, 1.0), (0.95, 0.8)])
def test_where_every_ratio_is_one_v_trace_has_the_returns_of_generalised_advantages(
    gamma: float, gae_lambda: float
):
    generator = torch.Generator().manual_seed(2)
    rewards, values = torch.randn(2, 50, generator=generator)
    ids = torch.tensor([0] * 20 + [1] + [2] * 29)
    keys = {"gamma": gamma, "gae_lambda": gae_lambda}
    wanted = generalised_advantages(rewards, values, ids, **keys)
    for cap in (1.0, 5.0):
        targets, found = v_trace(rewards, values, torch.ones(50), ids, cap=cap, **keys)
        assert torch.allclose(targets, wanted + values, atol=1e-5)
        assert gae_lambda != 1.0 or torch.allclose(found, wanted, atol=1e-5)


def test_v_trace_of_long_sequences_matches_the_recursion_and_packing_changes_no_bit():
    generator = torch.Generator().manual_seed(1)
    wanted, alone, parts = [], [], []
    for i, length in enumerate((33, 1, 6)):
        rewards, values = torch.randn(2, length, generator=generator)
        ratios = torch.rand(length, generator=generator) * 2
        above, following, found = 0.0, 0.0, []
        for r, v, ratio in zip(*(x.tolist()[::-1] for x in (rewards, values, ratios)), strict=True):
            capped = min(1.1, ratio)
            above = capped * (r + 0.99 * following - v) + 0.99 * 0.9 * capped * above
            following = v
            found.insert(0, v + above)
        wanted += found
        keys = {"gamma": 0.99, "gae_lambda": 0.9, "cap": 1.1}
        alone.append(v_trace(rewards, values, ratios, torch.zeros(length, dtype=torch.long), **keys)[0])
        parts.append((rewards, values, ratios, torch.full((length,), i)))
    packed, _ = v_trace(*map(torch.cat, zip(*parts, strict=True)), **keys)
    assert packed.tolist() == pytest.approx(wanted, abs=1e-5)
    assert torch.equal(packed, torch.cat(alone))


def test_the_lambda_of_a_response_grows_with_its_length():
    # alpha 0.5: 1 - 1 / (0.5 x 4) = 0.5 for four tokens; none for two or one.
    ids = torch.tensor([0, 1, 1, 2, 2, 2, 2])
    assert length_adaptive_lambda(ids, 0.5).tolist() == pytest.approx([0.0, 0.0, 0.0, 0.5, 0.5, 0.5, 0.5])
    # VAPO's 0.05: 0 up to 20 tokens, 0.9 at 200.
    found = length_adaptive_lambda(torch.tensor([0] * 20 + [1] * 200), 0.05)
    assert (found[:20].unique().tolist(), found[20:].unique().tolist()) == ([0.0], [pytest.approx(0.9)])


def test_behind_a_cut_its_last_value_is_expected():
    # 0.5 x 0.4 at the end of the first line, which was cut off; the second ended.
    found = continued(
        torch.tensor([0.0, 1.0, 2.0]),
        torch.tensor([0.3, 0.4, 0.9]),
        torch.tensor([0, 0, 1]),
        torch.tensor([True, True, False]),
        gamma=0.5,
    )
    assert found.tolist() == pytest.approx([0.0, 1.2, 2.0])


def test_each_sequence_may_have_a_lambda_of_its_own():
    lambdas = torch.tensor([0.5, 0.5, 0.5, 0.0])
    found = generalised_advantages(REWARDS, VALUES, SEQUENCES, gamma=0.8, gae_lambda=lambdas)
    assert torch.equal(found[:3], advantages(0.8, 0.5)[:3])
    assert torch.equal(found[3:], advantages(0.8, 0.0)[3:])


def test_no_tokens_have_no_advantages():
    nothing = torch.zeros(0)
    assert generalised_advantages(nothing, nothing, nothing.long(), gamma=1.0, gae_lambda=1.0).shape == (0,)
    assert end_rewards(nothing, nothing.long()).shape == (0,)


def test_a_reward_falls_on_the_last_token_of_its_sequence():
    rewards = torch.tensor([2.0, 2.0, 3.0, 4.0, 4.0])
    assert end_rewards(rewards, torch.tensor([0, 0, 1, 2, 2])).tolist() == [0.0, 2.0, 3.0, 0.0, 4.0]


def test_the_gradient_of_the_value_loss_is_the_error_where_the_clip_does_not_bind():
    # Before 0 and targets of 1, a clip of 0.5: moved by 0.4 it still counts; by 0.6, past the clip, the
    # larger error is the clipped value's, which has no gradient; on the wrong side it is the plain one.
    values = torch.tensor([0.4, 0.6, -0.6], requires_grad=True)
    losses = clipped_value_loss(values, torch.zeros(3), torch.ones(3), 0.5)
    assert losses.tolist() == pytest.approx([0.18, 0.125, 1.28])
    (gradient,) = torch.autograd.grad(losses.sum(), values)
    assert gradient.tolist() == pytest.approx([-0.6, 0.0, -1.6])


def test_without_a_clip_the_value_loss_is_half_the_squared_error():
    values = torch.tensor([0.4, 3.0], requires_grad=True)
    losses = clipped_value_loss(values, torch.zeros(2), torch.ones(2), None)
    assert losses.tolist() == pytest.approx([0.18, 2.0])
    (gradient,) = torch.autograd.grad(losses.sum(), values)
    assert gradient.tolist() == pytest.approx([-0.6, 2.0])


def test_a_chain_discounts_a_branch_by_the_sampled_tokens_of_later_ones():
    # Trajectory 0 has branches of 1, 2 and 1 tokens, of which 3, 1 and 0 follow; trajectory 1 has one.
    lines, sequences = torch.tensor([0, 1, 1, 2, 3]), torch.tensor([0, 0, 0, 0, 1])
    found = chained(torch.tensor([1.0, 2.0, -2.0, 1.0, 1.0]), lines, sequences, gamma=0.8, gae_lambda=0.625)
    assert found.tolist() == [0.125, 1.0, -1.0, 1.0, 1.0]
    # lambda 1 and gamma 1: what the outcome gives.
    ones = torch.ones(5)
    assert chained(ones, lines, sequences, gamma=1.0, gae_lambda=1.0).tolist() == ones.tolist()
    lambdas = torch.tensor([0.5, 0.5, 0.5, 0.5, 0.25])
    assert chained(ones, lines, sequences, gamma=1.0, gae_lambda=lambdas).tolist() == [
        0.125,
        0.5,
        0.5,
        1.0,
        1.0,
    ]
