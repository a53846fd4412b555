"""Reductions: the same three tokens under each."""

import pytest
from fakes.loss_inputs import gradient, make_inputs

from asyncrl.algorithms.losses import make_loss
from asyncrl.recipe import Algorithm


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
