"""Tokens that a step learns from: likely or unlikely ones, of positive or negative advantage.

A token's part of the gradient is |g|, g the derivative of the loss with respect to the token's log-prob,
before the denominator: of the policy loss and KL, not of the entropy bonus. It comes with the backward pass
and costs none of its own. It is a proxy: in the logits a token's gradient is |g| (1 - p) at its own one, so
that likely tokens move weights less than their part says; and parts that cancel in the weights add up here.

Shapes: T tokens of one micro-batch.
"""

import math

import torch
from torch import Tensor

from asyncrl.algorithms.inputs import LossInputs

LIKELY = 0.5
"""Probability, under the policy in training, from which on a token is likely."""
QUADRANTS = ("likely_positive", "likely_negative", "unlikely_positive", "unlikely_negative")
NUM_SUMS = 2 * len(QUADRANTS)
"""Tokens that count by quadrant, then |g|. Advantages of 0 are in none."""


def token_sums(inputs: LossInputs) -> Tensor:
    """[NUM_SUMS] float64; the parts of the gradient are 0 until `watch` finds them."""
    counts = _by_quadrant(torch.ones_like(inputs.proximal), inputs)
    return torch.cat([counts, torch.zeros_like(counts)])


def watch(inputs: LossInputs, sums: Tensor) -> None:
    """Adds to the last of `sums`, in place, as the backward pass brings the gradient."""
    if not inputs.current.requires_grad:
        return

    def add(gradient: Tensor) -> None:
        sums[-len(QUADRANTS) :] += _by_quadrant(gradient.detach().abs(), inputs)

    inputs.current.register_hook(add)


def metrics(sums: Tensor) -> dict[str, float]:
    """Columns of a step from [NUM_SUMS] over all its micro-batches and ranks."""
    found = {}
    for name, own in zip(("token", "gradient"), sums.view(2, len(QUADRANTS)).tolist(), strict=True):
        total = sum(own)
        for quadrant, part in zip(QUADRANTS, own, strict=True):
            found[f"{name}_share_{quadrant}"] = part / total if total else math.nan
    return found


@torch.no_grad()
def _by_quadrant(values: Tensor, inputs: LossInputs) -> Tensor:
    """[len(QUADRANTS)] float64 sums over the tokens that count."""
    is_likely = inputs.current.detach() >= math.log(LIKELY)
    is_positive, is_negative = inputs.advantages > 0, inputs.advantages < 0
    masks = [side & sign for side in (is_likely, ~is_likely) for sign in (is_positive, is_negative)]
    return torch.stack([torch.where(mask & inputs.mask, values.double(), 0.0).sum() for mask in masks])
