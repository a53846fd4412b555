"""The loss as a whole: weight x surrogate, penalties, reduction."""

import dataclasses
import itertools
import math
from pathlib import Path

import pytest
import torch
from fakes.loss_inputs import gradient, make_inputs
from fakes.recipes import make_recipe
from torch import Tensor

from asyncrl.algorithms.divergences import DIVERGENCES, WEIGHTED_DIVERGENCES
from asyncrl.algorithms.inputs import LossInputs, forward, interpolated
from asyncrl.algorithms.losses import make_loss
from asyncrl.algorithms.rejections import TRUST_REGIONS
from asyncrl.algorithms.surrogates import SURROGATES, ppo_clip
from asyncrl.algorithms.weights import REDUCTIONS, WEIGHTS, truncated
from asyncrl.errors import InputError
from asyncrl.recipe import Algorithm

DEFAULT = Algorithm()


def test_an_extreme_log_ratio_gives_a_finite_weight_and_a_finite_gradient():
    uncapped = Algorithm(importance_weight={"name": "truncated", "cap": 1e30})
    inputs = make_inputs(current=[-1.0], behavior=[-500.0])
    assert truncated(inputs, uncapped).tolist() == pytest.approx([math.exp(20)])
    far = make_inputs(current=[0.0], proximal=[-500.0])
    assert math.isfinite(gradient(ppo_clip(far, DEFAULT).sum(), far)[0])


def test_a_masked_token_is_in_neither_numerator_nor_denominator():
    inputs = make_inputs(current=[-1.0, -2.0, -3.0], advantages=[1.0, 5.0, 1.0], mask=[True, False, True])
    total, denominator, *_ = make_loss(DEFAULT, max_new_tokens=8)(inputs)
    assert (total.item(), denominator.item()) == (-2.0, 2)
    assert gradient(total, inputs) == [-1.0, 0.0, -1.0]


def test_a_masked_token_cannot_spread_a_number_that_is_none():
    inputs = make_inputs(current=[-1.0, math.nan], proximal=[-1.0, -1.0], mask=[True, False])
    total, *_ = make_loss(DEFAULT, max_new_tokens=8)(inputs)
    assert total.item() == -1.0


def test_the_dr_grpo_constant_counts_sequences_not_their_tokens():
    algorithm = Algorithm(reduction="dr_grpo_constant")
    inputs = make_inputs(current=[-1.0, -2.0, -3.0], sequence_ids=[0, 0, 2])
    _, denominator, *_ = make_loss(algorithm, max_new_tokens=64)(inputs)
    assert denominator.item() == 2 * 64


def test_a_micro_batch_without_tokens_adds_nothing():
    for reduction in REDUCTIONS:
        inputs = LossInputs(*[torch.zeros(0, requires_grad=i == 0) for i in range(4)], *_no_tokens())
        inputs = dataclasses.replace(inputs, prompt_lengths=torch.zeros(0))
        total, denominator, *_ = make_loss(Algorithm(reduction=reduction), max_new_tokens=8)(inputs)
        assert (total.item(), denominator.item()) == (0.0, 0)


def _no_tokens() -> tuple[Tensor, Tensor]:
    return torch.zeros(0, dtype=torch.bool), torch.zeros(0, dtype=torch.long)


def test_a_batch_that_is_rejected_as_a_whole_has_no_gradient():
    algorithm = Algorithm(rejection=["token_range"])
    inputs = make_inputs(current=[-1.0, -1.0], behavior=[-9.0, -9.0])
    total, denominator, weights, *_ = make_loss(algorithm, max_new_tokens=8)(inputs)
    assert (total.item(), denominator.item(), weights.tolist()) == (0.0, 2, [0.0, 0.0])
    assert gradient(total, inputs) == [0.0, 0.0]


def test_kl_in_the_loss_is_added_unweighted_by_its_coefficient():
    # k2 = d^2 / 2 with d = 0.5 and -1; its gradient is d
    algorithm = Algorithm(kl={"coefficient": 0.1, "estimator": "k2"}, importance_weight="none")
    inputs = make_inputs(current=[-1.0, -2.0], advantages=[0.0, 0.0], reference=[-1.5, -1.0])
    total, *_ = make_loss(algorithm, max_new_tokens=8)(inputs)
    assert total.item() == pytest.approx(0.1 * (0.125 + 0.5))
    assert gradient(total, inputs) == pytest.approx([0.05, -0.1])


def test_the_entropy_bonus_lowers_the_loss():
    algorithm = Algorithm(entropy_bonus={"coefficient": 0.01})
    inputs = make_inputs(current=[-1.0, -2.0], advantages=[0.0, 0.0], entropies=[1.0, 3.0])
    total, *_ = make_loss(algorithm, max_new_tokens=8)(inputs)
    assert total.item() == pytest.approx(-0.04)
    (slopes,) = torch.autograd.grad(total, inputs.entropies)
    assert slopes.tolist() == pytest.approx([-0.01, -0.01])


@pytest.mark.parametrize("reduction", sorted(REDUCTIONS))
@pytest.mark.parametrize("surrogate", sorted(SURROGATES))
@pytest.mark.parametrize("weight", sorted(WEIGHTS))
def test_sequences_alone_add_up_to_the_batch(weight: str, surrogate: str, reduction: str):
    algorithm = Algorithm(
        importance_weight=weight,
        surrogate=surrogate,
        reduction=reduction,
        rejection=[
            {"name": "second_moment", "limit": 0.5},
            {"name": "geometric_mean", "low": 0.5, "high": 2.0},
            "token_range",
        ],
        kl={"coefficient": 0.1},
    )
    loss = make_loss(algorithm, max_new_tokens=8)
    whole = _random_inputs([5, 1, 4, 7])
    total, denominator, *_ = loss(whole)
    wanted = torch.tensor(gradient(total, whole))
    parts, slopes = [], []
    for sequence in range(4):
        part = _only(whole, sequence)
        parts.append(loss(part))
        slopes += gradient(parts[-1].total, part)
    assert sum(part.total.item() for part in parts) == pytest.approx(total.item(), abs=1e-5)
    assert sum(part.denominator.item() for part in parts) == pytest.approx(denominator.item(), abs=1e-12)
    assert torch.allclose(torch.tensor(slopes), wanted, atol=1e-5)


@pytest.mark.parametrize("weight", sorted(WEIGHTS))
@pytest.mark.parametrize("surrogate", sorted(SURROGATES))
def test_padding_changes_nothing(weight: str, surrogate: str):
    algorithm = Algorithm(
        importance_weight=weight, surrogate=surrogate, reduction="sequence_mean", rejection=["second_moment"]
    )
    loss = make_loss(algorithm, max_new_tokens=8)
    packed = _random_inputs([3, 5])
    # Two rows of six, filled up with tokens that do not count and hold nonsense.
    places = [0, 1, 2, 6, 7, 8, 9, 10]
    fields = {}
    for name in ("current", "proximal", "behavior", "advantages", "reference"):
        row = torch.full((12,), 9.0)
        row[places] = getattr(packed, name).detach()
        fields[name] = row
    mask = torch.zeros(12, dtype=torch.bool)
    mask[places] = packed.mask
    fields["current"].requires_grad_()
    padded = LossInputs(**fields, mask=mask, sequence_ids=torch.arange(12) // 6)
    total, denominator, *_ = loss(packed)
    padded_total, padded_denominator, *_ = loss(padded)
    assert padded_total.item() == pytest.approx(total.item(), abs=1e-5)
    assert padded_denominator.item() == denominator.item()
    slopes = torch.tensor(gradient(padded_total, padded))
    assert torch.allclose(slopes[places], torch.tensor(gradient(total, packed)), atol=1e-5)
    assert not slopes[~mask].any()


def _random_inputs(lengths: list[int]) -> LossInputs:
    generator = torch.Generator().manual_seed(1)
    size = sum(lengths)
    proximal = -torch.rand(size, generator=generator) - 0.5
    sequence_ids = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    mask = torch.ones(size, dtype=torch.bool)
    mask[1] = False
    # Each two sequences have one prompt.
    counts = torch.zeros(len(lengths)).index_add(0, sequence_ids // 2, mask.float())
    return LossInputs(
        current=(proximal + 0.3 * torch.randn(size, generator=generator)).requires_grad_(),
        proximal=proximal,
        behavior=proximal + 0.6 * torch.randn(size, generator=generator),
        advantages=torch.randn(len(lengths), generator=generator)[sequence_ids],
        mask=mask,
        sequence_ids=sequence_ids,
        prompt_lengths=counts[sequence_ids // 2],
        reference=proximal - 0.1,
    )


def _only(inputs: LossInputs, sequence: int) -> LossInputs:
    chosen = inputs.sequence_ids == sequence
    assert inputs.reference is not None and inputs.prompt_lengths is not None
    return LossInputs(
        current=inputs.current.detach()[chosen].requires_grad_(),
        proximal=inputs.proximal[chosen],
        behavior=inputs.behavior[chosen],
        advantages=inputs.advantages[chosen],
        mask=inputs.mask[chosen],
        sequence_ids=torch.zeros_like(inputs.sequence_ids[chosen]),
        prompt_lengths=inputs.prompt_lengths[chosen],
        reference=inputs.reference[chosen],
    )


def test_correct_responses_are_imitated_by_hand():
    # Two of four tokens that count are of a correct response, so each weighs 4 / 2. ln p -1 and -2:
    # 0.1 x 2 x (1 + 2) = 0.6 over 4 tokens, 0.15: a tenth of their mean NLL of 1.5.
    inputs = dataclasses.replace(
        make_inputs(current=[-1.0, -2.0, -0.5, -0.25], sequence_ids=[0, 0, 1, 1], advantages=[0.0] * 4),
        imitated=torch.tensor([2.0, 2.0, 0.0, 0.0]),
    )
    total, denominator, *_ = make_loss(Algorithm(nll_coefficient=0.1), max_new_tokens=8)(inputs)
    assert (total / denominator).item() == pytest.approx(0.15)
    assert gradient(total, inputs) == pytest.approx([-0.2, -0.2, 0.0, 0.0])


@pytest.mark.parametrize("surrogate", sorted(SURROGATES))
def test_however_far_policies_are_apart_no_term_has_a_gradient_that_is_no_number(surrogate: str):
    inputs = make_inputs(
        current=[-800.0, -1e-7, 1e-7, -90.0, -1.0, -800.0],
        behavior=[-1e-7, -800.0, -1e-7, -1.0, -90.0, -0.1],
        advantages=[1.0, -1.0, 1.0, -1.0, 1.0, -1.0],
        mask=[True] * 5 + [False],
        sequence_ids=[0, 0, 0, 1, 1, 1],
        reference=[-1.0, -800.0, 0.0, -1.0, -300.0, -1.0],
    )
    inputs = dataclasses.replace(
        inputs, hit=inputs.mask.roll(1), is_top=inputs.mask.roll(2), imitated=torch.ones(6)
    )
    more = {"probability_damping": 0.2, "top_entropy_share": 0.5, "entropy_control": "kl_cov"}
    more |= {"behavior_kl_coefficient": 0.1, "nll_coefficient": 0.1}
    anchors = ({}, {"clip_around": "behavior", "importance_weight": "none"})
    for region, estimator in itertools.product(TRUST_REGIONS, (*DIVERGENCES, *WEIGHTED_DIVERGENCES)):
        for anchor in anchors[: 1 if surrogate == "reinforce" else 2]:
            kl = {"coefficient": 0.1, "estimator": estimator}
            keys = {"surrogate": surrogate, "trust_region": [region], "kl": kl}
            algorithm = Algorithm(**keys, **anchor, **more)
            found = gradient(make_loss(algorithm, max_new_tokens=8)(inputs).total, inputs)
            assert all(map(math.isfinite, found)) and found[-1] == 0.0, keys


def logs(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64).log()


def test_an_interpolated_policy_is_a_kth_of_the_way_back():
    """m .5, p .6, lag 4: q .573266, rho 1.146531, x 1.046635."""
    (q,) = interpolated(logs(0.6), logs(0.5), torch.tensor([4])).exp().tolist()
    assert q == pytest.approx(0.573266, abs=5e-7)
    assert q / 0.5 == pytest.approx(1.146531, abs=1e-6) and 0.6 / q == pytest.approx(1.046635, abs=1e-6)


def test_it_is_mu_at_a_staleness_of_1_and_the_policy_itself_at_0():
    policy, behavior = logs(0.6, 0.6, 0.6, 0.6), logs(0.5, 0.5, 0.5, 0.5)
    found = interpolated(policy, behavior, torch.tensor([0, 1, 2, 1000])).exp().tolist()
    assert found == pytest.approx([0.6, 0.5, math.sqrt(0.3), 0.6 * (5 / 6) ** 0.001])
    assert forward(policy, behavior, torch.tensor([3] * 4)) is policy


def test_weight_times_ratio_is_the_whole_ratio_in_the_gradient():
    current, behavior = logs(0.6, 0.2), logs(0.5, 0.25)
    inputs = make_inputs(current=current.tolist(), behavior=behavior.tolist(), advantages=[1.0, -2.0])
    lags = torch.tensor([4, 3])
    proximal = interpolated(inputs.current.detach(), inputs.behavior, lags)
    inputs = dataclasses.replace(inputs, proximal=proximal)
    algorithm = Algorithm(proximal="interpolated")
    total = make_loss(algorithm, max_new_tokens=8)(inputs).total
    assert gradient(total, inputs) == pytest.approx([-1.2, 2 * 0.8], rel=1e-5)
    # The proximal policy has no gradient of its own: a difference with it held still.
    nearby = dataclasses.replace(inputs, current=inputs.current.detach() + torch.tensor([1e-3, 0.0]))
    slope = (make_loss(algorithm, max_new_tokens=8)(nearby).total - total).item() / 1e-3
    assert slope == pytest.approx(-1.2, rel=2e-3)


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        (
            {"algorithm": {"clip_around": "behavior", "importance_weight": "none"}},
            "no ratio is taken against",
        ),
        ({"algorithm": {"surrogate": "reinforce"}}, "reinforce has no ratio"),
        ({"rollout": {"max_staleness": 0}}, "no token is stale"),
    ],
)
def test_an_interpolated_policy_that_nothing_uses_is_refused(sections: dict, words: str):
    algorithm = sections.get("algorithm", {}) | {"proximal": "interpolated"}
    with pytest.raises(InputError, match=words):
        make_recipe(Path("m"), **(sections | {"algorithm": algorithm}))
