"""Losses of single tokens, changed by what the tokens are: entropy controls hold back those that take the
most entropy out of the policy, the top-entropy share teaches those of the highest entropy alone, damping
weakens unlikely ones. KL and entropy bonus stay. Shapes: T tokens.

A step lowers the entropy by about the learning rate times the mean of cov_t = (A_t - mean A) (log q_t - mean
log q), where the few tokens of large cov matter (Cui et al. 2025, arXiv 2505.22617). Both means are over all
tokens that count of an optimizer step, of all micro-batches and ranks; q is the policy before the batch,
which costs a forward pass more at one optimizer step per batch, and none at several. Below, `hit` are the
tokens found, C is share, n the number of tokens that count, at least one is taken.
"""

import torch
from torch import Tensor

from asyncrl.algorithms.inputs import LossInputs
from asyncrl.algorithms.surrogates import anchor
from asyncrl.recipe import Algorithm
from asyncrl.recipe.algorithm_terms import KlCov
from asyncrl.recipe.terms import chosen

GRID = 2.0**14
"""Covariances and entropies are judged in steps of 1/GRID: tokens with equal pasts stay equal, in whichever
micro-batch they are and however it rounds."""


def clip_cov(losses: Tensor, inputs: LossInputs, algorithm: Algorithm) -> Tensor:
    """0 for hit tokens: C n drawn at random of those with low < cov_t < high

    Source: Clip-Cov, Cui et al. 2025 (arXiv 2505.22617, eq. 10 and 11); verl's clip_cov_*. Drawn by seed and
    step.
    Use: runs whose entropy falls before tasks are solved, at any number of optimizer steps per batch.
    Fails: the range depends on the model: none is hit where covariances stay below it; too many hits, and
    entropy grows without end.
    """
    assert inputs.hit is not None
    return torch.where(inputs.hit, 0.0, losses)


def kl_cov(losses: Tensor, inputs: LossInputs, algorithm: Algorithm) -> Tensor:
    """+ coefficient |log r_t| for hit tokens: the C n of the largest cov_t > 0

    Source: KL-Cov, Cui et al. 2025 (arXiv 2505.22617, eq. 12 and 13); verl's ppo_kl_coef 0.1, there without
    PPO's clip.
    Use: as clip_cov, calmer: tokens are pulled back to the policy before the batch instead of left out.
    Fails: needs ratios other than 1: several optimizer steps per batch, or stale tokens around behavior.
    """
    assert inputs.hit is not None
    distance = (inputs.current - anchor(inputs, algorithm)).abs()
    coefficient = chosen(algorithm.entropy_control, KlCov).coefficient
    return torch.where(inputs.hit, losses + coefficient * distance, losses)


ENTROPY_CONTROLS = {"clip_cov": clip_cov, "kl_cov": kl_cov}


def covariances(logprobs: Tensor, advantages: Tensor, mean_logprob: float, mean_advantage: float) -> Tensor:
    """[T] float64, on the grid."""
    products = (advantages.double() - mean_advantage) * (logprobs.double() - mean_logprob)
    return on_grid(products)


def on_grid(values: Tensor) -> Tensor:
    """[T] float64 multiples of 1/GRID."""
    return (values.double() * GRID).round() / GRID


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
