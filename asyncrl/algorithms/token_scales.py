"""Scales of tokens in the loss: unlikely tokens damped, and only those of the highest entropy."""

import torch
from torch import Tensor

from asyncrl.algorithms.inputs import LossInputs
from asyncrl.recipe import Algorithm


def low_probability(inputs: LossInputs, algorithm: Algorithm) -> Tensor:
    """A (a sg[p] + 1 - a) in the place of A, a = probability_damping, p the policy in training

    Source: advantage reweighting, Yang et al. 2025 (arXiv 2505.12929, eq. 8), a 0.2 with GRPO.
    Use: unlikely tokens, whose gradient in the logits grows with 1 - p, drown what the many likely ones teach
    (the columns gradient_share_*).
    Fails: rare tokens that explore are damped first, the good ones too; the advantages of a group no longer
    add up to 0, which favors what is likely.
    """
    a = algorithm.probability_damping
    return inputs.advantages * (a * inputs.current.detach().exp() + 1 - a)


def top_entropy(losses: Tensor, inputs: LossInputs, algorithm: Algorithm) -> Tensor:
    """0 unless H_t >= b, the largest for which top_entropy_share of the tokens of the optimizer step have it

    Source: Wang et al. 2025 (arXiv 2506.01939); TRL's top_entropy_quantile. H_t is the entropy of the policy
    in training at the token, KL and bonus stay on all tokens, and so does the denominator, as in TRL.
    Use: long reasoning of models of billions of parameters: forks are few (0.2), the rest follows from them.
    Fails: one more forward pass per optimizer step; the denominator is whole, so steps shrink with the share;
    small models also learn from the rest.
    """
    assert inputs.is_top is not None
    return torch.where(inputs.is_top, losses, 0.0)
