"""Damping of unlikely tokens: their log-probs have the largest gradients in the logits."""

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
