"""Inputs of the loss from plain lists."""

import dataclasses

import torch
from torch import Tensor

from asyncrl.algorithms.inputs import LossInputs
from asyncrl.algorithms.rejections import (
    find_second_moment_bound,
    second_moment_sums,
    squares_of_tokens_that_move_away,
)
from asyncrl.recipe import Algorithm


def make_inputs(
    *,
    current: list[float],
    proximal: list[float] | None = None,
    behavior: list[float] | None = None,
    advantages: list[float] | None = None,
    mask: list[bool] | None = None,
    sequence_ids: list[int] | None = None,
    reference: list[float] | None = None,
    entropies: list[float] | None = None,
    prompt_lengths: list[int] | None = None,
) -> LossInputs:
    """What is left out is on-policy: one sequence, advantages of 1, every token counts."""
    size = len(current)
    return LossInputs(
        current=torch.tensor(current, requires_grad=True),
        proximal=torch.tensor(proximal or current),
        behavior=torch.tensor(behavior or current),
        advantages=torch.tensor(advantages or [1.0] * size),
        mask=torch.tensor(mask or [True] * size),
        sequence_ids=torch.tensor(sequence_ids or [0] * size),
        prompt_lengths=None if prompt_lengths is None else torch.tensor(prompt_lengths).float(),
        reference=None if reference is None else torch.tensor(reference),
        entropies=torch.tensor(entropies or [0.0] * size, requires_grad=True),
    )


def gradient(total: Tensor, inputs: LossInputs) -> list[float]:
    """Of a scalar with respect to the current log-probs."""
    (result,) = torch.autograd.grad(total, inputs.current)
    return result.tolist()


def with_second_moment_bound(inputs: LossInputs, algorithm: Algorithm) -> LossInputs:
    """As the learner finds it where these are all tokens of an optimizer step; as they are without a term
    that is judged by it."""
    squares = squares_of_tokens_that_move_away(inputs, algorithm).double()

    def count_and_sum(bound: float) -> tuple[float, float]:
        count, total = second_moment_sums(squares, bound, algorithm).tolist()
        return count, total

    terms = (*algorithm.rejection, *algorithm.trust_region)
    limits = [term.limit for term in terms if term.name in ("second_moment", "second_moment_clip")]
    if not limits:
        return inputs
    bound = find_second_moment_bound(count_and_sum, limits[0])
    return dataclasses.replace(inputs, second_moment_bound=bound)
