import math

import pytest
import torch
from torch import Tensor

from asyncrl.algorithms.losses import (
    IMPORTANCE_WEIGHTS,
    REDUCTIONS,
    SURROGATES,
    LossInputs,
    make_loss,
    no_weight,
    ppo_clip,
    reinforce,
    truncated,
)
from asyncrl.recipe import Algorithm

DEFAULT = Algorithm()


def make_inputs(
    *,
    current: list[float],
    proximal: list[float] | None = None,
    behavior: list[float] | None = None,
    advantages: list[float] | None = None,
    mask: list[bool] | None = None,
    sequence_ids: list[int] | None = None,
) -> LossInputs:
    size = len(current)
    return LossInputs(
        current=torch.tensor(current, requires_grad=True),
        proximal=torch.tensor(proximal or current),
        behavior=torch.tensor(behavior or current),
        advantages=torch.tensor(advantages or [1.0] * size),
        mask=torch.tensor(mask or [True] * size),
        sequence_ids=torch.tensor(sequence_ids or [0] * size),
    )


def gradient(total: Tensor, inputs: LossInputs) -> list[float]:
    (result,) = torch.autograd.grad(total, inputs.current)
    return result.tolist()


def test_the_truncated_weight_is_the_ratio_up_to_the_cap():
    # ratios e^0.5 = 1.6487, e^1 = 2.718 and e^-1 = 0.3679; cap 2
    inputs = make_inputs(current=[-1.0, -1.0, -2.0], behavior=[-1.5, -2.0, -1.0])
    assert truncated(inputs, DEFAULT).tolist() == pytest.approx([math.exp(0.5), 2.0, math.exp(-1)])


def test_the_truncated_weight_compares_the_proximal_policy_not_the_current_one():
    inputs = make_inputs(current=[-9.0], proximal=[-1.0], behavior=[-1.5])
    assert truncated(inputs, DEFAULT).tolist() == pytest.approx([math.exp(0.5)])


def test_no_weight_is_one_however_stale_the_token():
    inputs = make_inputs(current=[-1.0, -9.0], behavior=[-9.0, -1.0])
    assert no_weight(inputs, DEFAULT).tolist() == [1.0, 1.0]


def test_an_extreme_log_ratio_gives_a_finite_weight_and_a_finite_gradient():
    uncapped = Algorithm(importance_cap=1e30)
    inputs = make_inputs(current=[-1.0], behavior=[-500.0])
    assert truncated(inputs, uncapped).tolist() == pytest.approx([math.exp(20)])
    far = make_inputs(current=[0.0], proximal=[-500.0])
    assert math.isfinite(gradient(ppo_clip(far, DEFAULT).sum(), far)[0])


def test_reinforce_is_minus_advantage_times_log_prob():
    inputs = make_inputs(current=[-0.5, -2.0], advantages=[2.0, -1.0])
    losses = reinforce(inputs, DEFAULT)
    assert losses.tolist() == [1.0, -2.0]
    assert gradient(losses.sum(), inputs) == [-2.0, 1.0]


def test_ppo_at_the_proximal_policy_has_the_gradient_of_reinforce():
    inputs = make_inputs(current=[-0.5, -2.0], advantages=[2.0, -1.0])
    losses = ppo_clip(inputs, DEFAULT)
    assert losses.tolist() == [-2.0, 1.0]
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


def test_ppo_clip_bounds_may_differ_above_and_below():
    higher = Algorithm(clip_low=0.1, clip_high=0.5)
    inputs = make_inputs(current=[0.0, -2.0], proximal=[-1.0, -1.0], advantages=[1.0, -1.0])
    assert ppo_clip(inputs, higher).tolist() == pytest.approx([-1.5, 0.9])


def test_the_importance_weight_scales_the_gradient_and_has_none_itself():
    # weight min(e^0.5, 2), advantage 3: gradient -3 e^0.5; a weight with gradient would add to it
    inputs = make_inputs(current=[-1.0], behavior=[-1.5], advantages=[3.0])
    total, _ = make_loss(DEFAULT, max_new_tokens=8)(inputs)
    assert gradient(total, inputs) == pytest.approx([-3 * math.exp(0.5)])


def test_a_masked_token_is_in_neither_numerator_nor_denominator():
    inputs = make_inputs(current=[-1.0, -2.0, -3.0], advantages=[1.0, 5.0, 1.0], mask=[True, False, True])
    total, denominator = make_loss(DEFAULT, max_new_tokens=8)(inputs)
    assert (total.item(), denominator.item()) == (-2.0, 2)
    assert gradient(total, inputs) == [-1.0, 0.0, -1.0]


def test_a_masked_token_cannot_spread_a_number_that_is_none():
    inputs = make_inputs(current=[-1.0, math.nan], proximal=[-1.0, -1.0], mask=[True, False])
    total, _ = make_loss(DEFAULT, max_new_tokens=8)(inputs)
    assert total.item() == -1.0


def test_the_dr_grpo_constant_counts_sequences_not_their_tokens():
    algorithm = Algorithm(reduction="dr_grpo_constant")
    inputs = make_inputs(current=[-1.0, -2.0, -3.0], sequence_ids=[0, 0, 2])
    _, denominator = make_loss(algorithm, max_new_tokens=64)(inputs)
    assert denominator.item() == 2 * 64


def test_a_micro_batch_without_tokens_adds_nothing():
    for reduction in REDUCTIONS:
        inputs = LossInputs(*[torch.zeros(0, requires_grad=i == 0) for i in range(4)], *_no_tokens())
        total, denominator = make_loss(Algorithm(reduction=reduction), max_new_tokens=8)(inputs)
        assert (total.item(), denominator.item()) == (0.0, 0)


def test_every_name_in_the_recipe_is_a_term():
    fields = Algorithm.model_fields
    assert set(fields["importance_weight"].annotation.__args__) == set(IMPORTANCE_WEIGHTS)
    assert set(fields["surrogate"].annotation.__args__) == set(SURROGATES)
    assert set(fields["reduction"].annotation.__args__) == set(REDUCTIONS)


@pytest.mark.parametrize("surrogate", sorted(SURROGATES))
@pytest.mark.parametrize("weight", sorted(IMPORTANCE_WEIGHTS))
def test_the_gradient_agrees_with_finite_differences(weight: str, surrogate: str):
    algorithm = Algorithm(importance_weight=weight, surrogate=surrogate)
    loss = make_loss(algorithm, max_new_tokens=8)
    generator = torch.Generator().manual_seed(0)
    size = 6
    proximal = -torch.rand(size, generator=generator, dtype=torch.float64) - 0.5
    behavior = proximal + torch.randn(size, generator=generator, dtype=torch.float64)
    advantages = torch.randn(size, generator=generator, dtype=torch.float64)
    rest = (proximal, behavior, advantages, torch.ones(size, dtype=torch.bool), torch.arange(size))
    current = (proximal + 0.1).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: loss(LossInputs(x, *rest))[0], current)


def _no_tokens() -> tuple[Tensor, Tensor]:
    return torch.zeros(0, dtype=torch.bool), torch.zeros(0, dtype=torch.long)
