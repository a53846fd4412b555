"""Inputs of the loss from plain lists."""

import torch
from torch import Tensor

from asyncrl.algorithms.inputs import LossInputs


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
        reference=None if reference is None else torch.tensor(reference),
        entropies=torch.tensor(entropies or [0.0] * size, requires_grad=True),
    )


def gradient(total: Tensor, inputs: LossInputs) -> list[float]:
    """Of a scalar with respect to the current log-probs."""
    (result,) = torch.autograd.grad(total, inputs.current)
    return result.tolist()
