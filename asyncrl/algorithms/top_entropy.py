"""Loss on the tokens where the policy is undecided: those of the highest entropy of an optimizer step."""

import torch
from torch import Tensor

from asyncrl.algorithms.inputs import LossInputs
from asyncrl.recipe import Algorithm


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
