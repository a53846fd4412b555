"""Surrogates: what a step minimises per token, before its importance weight.

Below, r = pi / pi_prox of one token (pi / mu with clip_around: behavior), A its advantage, low and high are
clip_low and clip_high, sg[] is a value without gradient. Shapes: T response tokens.
"""

import torch
from torch import Tensor

from asyncrl.algorithms.inputs import LossInputs, bounded_exp, bounded_ratio, sequence_mean
from asyncrl.recipe import Algorithm


def reinforce(inputs: LossInputs, algorithm: Algorithm) -> Tensor:
    """-A log pi

    Source: Williams 1992.
    Use: one optimizer step per batch, where no clip ever binds.
    Fails: nothing bounds the change of the policy over several steps on the same batch.
    """
    return -inputs.advantages * inputs.current


def ppo_clip(inputs: LossInputs, algorithm: Algorithm) -> Tensor:
    """-min(r A, clip(r, 1 - low, 1 + high) A); with dual_clip c, never above -c A where A < 0

    Source: PPO, Schulman et al. 2017 (arXiv 1707.06347, eq. 7); high > low is DAPO's clip-higher, Yu et al.
    2025 (arXiv 2503.14476, eq. 8); dual clip is Ye et al. 2020 (arXiv 1912.09729).
    Use: the default: bounds the change per token; clip-higher keeps rare good tokens learnable.
    Fails: clips the rare tokens first, around which reasoning branches; without dual_clip a huge r with A < 0
    is unbounded.
    """
    ratio = bounded_ratio(inputs.current, anchor(inputs, algorithm))
    clipped = ratio.clamp(1 - algorithm.clip_low, 1 + algorithm.clip_high)
    losses = -torch.minimum(ratio * inputs.advantages, clipped * inputs.advantages)
    if algorithm.dual_clip is None:
        return losses
    ceiling = -algorithm.dual_clip * inputs.advantages
    return torch.where(inputs.advantages < 0, torch.minimum(losses, ceiling), losses)


def gspo(inputs: LossInputs, algorithm: Algorithm) -> Tensor:
    """-min(s A, clip(s, 1 - low, 1 + high) A), s = exp(mean_t log r_t), each token with its sequence's s

    Source: GSPO, Zheng et al. 2025 (arXiv 2507.18071, eq. 5 and 7), exactly so with reduction sequence_mean.
    Use: mixtures of experts and long responses, whose token ratios are noise; takes clip_low 3e-4, clip_high
    4e-4.
    Fails: with PPO's clip range of 0.2 it never clips; a clipped sequence is lost as a whole.
    """
    ratio = bounded_exp(sequence_mean(inputs.current - anchor(inputs, algorithm), inputs))
    clipped = ratio.clamp(1 - algorithm.clip_low, 1 + algorithm.clip_high)
    return -torch.minimum(ratio * inputs.advantages, clipped * inputs.advantages)


def cispo(inputs: LossInputs, algorithm: Algorithm) -> Tensor:
    """-sg[clip(r, 1 - low, 1 + high)] A log pi

    Source: CISPO, MiniMax 2025 (arXiv 2506.13585, eq. 4 and 5), which sets no lower bound.
    Use: every token keeps its gradient: the weight is clipped, not the update.
    Fails: no token ever stops, so that many steps on one batch can run away.
    """
    ratio = bounded_ratio(inputs.current, anchor(inputs, algorithm)).detach()
    weight = ratio.clamp(1 - algorithm.clip_low, 1 + algorithm.clip_high)
    return -weight * inputs.advantages * inputs.current


def gmpo(inputs: LossInputs, algorithm: Algorithm) -> Tensor:
    """-A exp(mean_t c_t), c = min(log r, log(1 + high)) where A > 0, max(log r, log(1 - low)) where A < 0

    Source: GMPO, Zhao et al. 2025 (arXiv 2507.20673), exactly so with reduction sequence_mean.
    Use: a geometric mean over a response forgives single outlying ratios; stands clip ranges around 0.4.
    Fails: clips per token but scales per sequence: a few tokens that moved far still weigh on all the others.
    """
    log_ratio = inputs.current - anchor(inputs, algorithm)
    high = log_ratio.new_tensor(1 + algorithm.clip_high).log()
    low = log_ratio.new_tensor(1 - algorithm.clip_low).log()
    clipped = torch.where(inputs.advantages > 0, log_ratio.minimum(high), log_ratio.maximum(low))
    return -inputs.advantages * bounded_exp(sequence_mean(clipped, inputs))


def anchor(inputs: LossInputs, algorithm: Algorithm) -> Tensor:
    """[T] log-probs of the policy that ratios are taken against."""
    return inputs.behavior if algorithm.clip_around == "behavior" else inputs.proximal


SURROGATES = {"reinforce": reinforce, "ppo_clip": ppo_clip, "gspo": gspo, "cispo": cispo, "gmpo": gmpo}
