"""Importance weights on ratios that can be worked out by hand."""

import math
from collections.abc import Callable

import pytest
from fakes.loss_inputs import gradient, make_inputs

from asyncrl.algorithms.losses import make_loss
from asyncrl.algorithms.weights import masked, sequence_masked, sequence_truncated, truncated
from asyncrl.recipe import Algorithm

TOKENS = {"current": [-1.0, -1.0, -2.0], "behavior": [-1.5, -2.0, -1.0]}
"""Ratios e^0.5 = 1.65, e^1 = 2.72 and e^-1 = 0.37."""
SEQUENCES = {"current": [-1.0] * 4, "behavior": [-1.5, -0.8, -2.0, -2.0], "sequence_ids": [0, 0, 1, 1]}
"""Products e^0.5 e^-0.2 = e^0.3 and e^1 e^1."""
PAIR = {"current": [-1.0, -2.0], "behavior": [-1.5, -1.0]}
"""Ratios e^0.5 and e^-1 = 0.37; their product e^-0.5 = 0.61."""
LONG = {"current": [-1.0] * 500, "behavior": [-2.0] * 500}


@pytest.mark.parametrize(
    ("weight", "settings", "inputs", "wanted"),
    [
        (truncated, {}, TOKENS, [math.exp(0.5), 2.0, math.exp(-1)]),
        (masked, {"mask_high": 2.0}, TOKENS, [math.exp(0.5), 0.0, 0.0]),
        (sequence_truncated, {}, SEQUENCES, [math.exp(0.3)] * 2 + [2.0] * 2),
        (
            sequence_masked,
            {"importance_weight": "sequence_masked"},
            SEQUENCES,
            [math.exp(0.3)] * 2 + [0.0] * 2,
        ),
        (truncated, {"importance_weight": {"name": "truncated", "floor": 0.7}}, PAIR, [math.exp(0.5), 0.7]),
        (sequence_truncated, {"importance_weight": {"name": "truncated", "floor": 0.7}}, PAIR, [0.7, 0.7]),
        # The product over a very long sequence stays finite.
        (
            sequence_truncated,
            {"importance_weight": {"name": "truncated", "cap": 1e30}},
            LONG,
            [math.exp(20)] * 500,
        ),
    ],
)
def test_a_weight_is_its_ratio_or_product_within_its_bounds(
    weight: Callable, settings: dict, inputs: dict, wanted: list[float]
):
    assert weight(make_inputs(**inputs), Algorithm(**settings)).tolist() == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("reduction", "total", "denominator", "slopes"),
    [
        # losses -1 (twice) in sequence 0 and 3 in sequence 1
        ("token_mean", 1.0, 3, [-1.0, -1.0, 3.0]),
        ("dr_grpo_constant", 1.0, 2 * 16, [-1.0, -1.0, 3.0]),
        # (-1 - 1) / 2 + 3 / 1 over two sequences
        ("sequence_mean", 2.0, 2, [-0.5, -0.5, 3.0]),
    ],
)
def test_each_reduction_sums_and_counts(reduction: str, total: float, denominator: int, slopes: list[float]):
    inputs = make_inputs(current=[-1.0] * 3, advantages=[1.0, 1.0, -3.0], sequence_ids=[0, 0, 1])
    parts = make_loss(Algorithm(reduction=reduction), max_new_tokens=16)(inputs)
    assert (parts.total.item(), parts.denominator.item()) == (pytest.approx(total), denominator)
    assert gradient(parts.total, inputs) == pytest.approx(slopes)


def test_a_prompt_mean_weighs_prompts_alike_and_the_tokens_of_a_prompt_alike():
    # Losses -1, -1 and 3 of two responses to one prompt, 2 of another prompt; a token that does not count.
    inputs = make_inputs(
        current=[-1.0] * 5,
        advantages=[1.0, 1.0, -3.0, -2.0, 1.0],
        mask=[True, True, True, True, False],
        sequence_ids=[0, 0, 1, 2, 2],
        prompt_lengths=[3, 3, 3, 1, 1],
    )
    parts = make_loss(Algorithm(reduction="prompt_mean"), max_new_tokens=16)(inputs)
    assert parts.total.item() == pytest.approx((-1 - 1 + 3) / 3 + 2)
    assert parts.denominator.item() == pytest.approx(2)
    assert gradient(parts.total, inputs) == pytest.approx([-1 / 3, -1 / 3, 1, 2, 0])


def test_a_sequence_without_a_token_that_counts_is_in_no_sequence_mean():
    inputs = make_inputs(current=[-1.0] * 3, mask=[False, True, True], sequence_ids=[0, 1, 1])
    parts = make_loss(Algorithm(reduction="sequence_mean"), max_new_tokens=16)(inputs)
    assert (parts.total.item(), parts.denominator.item()) == (-1.0, 1)


@pytest.mark.parametrize(
    ("reduction", "prompts", "share"),
    [
        # By tokens: 10 of 12.
        ("token_mean", None, 10 / 12),
        ("dr_grpo_constant", None, 10 / 12),
        # By trajectories.
        ("sequence_mean", None, 1 / 2),
        # By tokens within one prompt, alike where they answer two.
        ("prompt_mean", [12] * 12, 10 / 12),
        ("prompt_mean", [10] * 10 + [2] * 2, 1 / 2),
    ],
)
def test_the_weight_of_a_trajectory_with_five_contexts_beside_one_with_one(
    reduction: str, prompts: list[int] | None, share: float
):
    # Two sampled tokens per context; the contexts of a trajectory are one sequence, as they are packed.
    inputs = make_inputs(current=[-1.0] * 12, sequence_ids=[0] * 10 + [1] * 2, prompt_lengths=prompts)
    slopes = gradient(make_loss(Algorithm(reduction=reduction), max_new_tokens=16)(inputs).total, inputs)
    assert sum(slopes[:10]) / sum(slopes) == pytest.approx(share)
