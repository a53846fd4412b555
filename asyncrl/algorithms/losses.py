"""The loss: importance weight (detached) x surrogate, summed, over a denominator that is global.

A term is a pure function of LossInputs and its options, chosen once at start from the recipe's algorithm
section. Nothing here averages: numerator and denominator are summed over micro-batches and ranks first.

Shapes: T response tokens of one micro-batch.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from asyncrl.recipe import Algorithm

MAX_LOG_RATIO = 20.0
"""Log-ratios are bounded to +-20 before exp: e^20 = 5e8 is beyond any cap, and finite in float32."""


@dataclass(frozen=True, slots=True)
class LossInputs:
    """What every term may look at."""

    current: Tensor
    """[T] float32 log-probs of the policy in training, with gradient."""
    proximal: Tensor
    """[T] float32 log-probs of the policy before this step, no gradient."""
    behavior: Tensor
    """[T] float32 log-probs as sampled; finite, also where `mask` is False."""
    advantages: Tensor
    """[T] float32, each token has its trajectory's."""
    mask: Tensor
    """[T] bool; False takes a token out of numerator and denominator."""
    sequence_ids: Tensor
    """[T] int64, the token's trajectory within the micro-batch."""


def bounded_ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """exp(numerator - denominator), [T] -> [T], with the log-ratio bounded to +-MAX_LOG_RATIO."""
    return (numerator - denominator).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def no_weight(inputs: LossInputs, algorithm: Algorithm) -> Tensor:
    """1: staleness and train-inference mismatch go uncorrected."""
    return torch.ones_like(inputs.proximal)


def truncated(inputs: LossInputs, algorithm: Algorithm) -> Tensor:
    """min(pi_prox / mu, C), per token (TIS: Yao et al. 2025, fengyao.notion.site/off-policy-rl)."""
    return bounded_ratio(inputs.proximal, inputs.behavior).clamp(max=algorithm.importance_cap)


def reinforce(inputs: LossInputs, algorithm: Algorithm) -> Tensor:
    """-A log pi (Williams 1992)."""
    return -inputs.advantages * inputs.current


def ppo_clip(inputs: LossInputs, algorithm: Algorithm) -> Tensor:
    """-min(r A, clip(r, 1 - low, 1 + high) A), r = pi / pi_prox (PPO; DAPO raises high)."""
    ratio = bounded_ratio(inputs.current, inputs.proximal)
    clipped = ratio.clamp(1 - algorithm.clip_low, 1 + algorithm.clip_high)
    return -torch.minimum(ratio * inputs.advantages, clipped * inputs.advantages)


def token_mean(inputs: LossInputs, max_new_tokens: int) -> Tensor:
    """Tokens that count: every token of the batch weighs the same (DAPO: Yu et al. 2025, eq. 8)."""
    return inputs.mask.sum()


def dr_grpo_constant(inputs: LossInputs, max_new_tokens: int) -> Tensor:
    """Sequences x max_new_tokens: independent of the lengths sampled (Dr.GRPO: Liu et al. 2025)."""
    return torch.bincount(inputs.sequence_ids).count_nonzero() * max_new_tokens


Term = Callable[[LossInputs, Algorithm], Tensor]
Denominator = Callable[[LossInputs, int], Tensor]
Loss = Callable[[LossInputs], tuple[Tensor, Tensor]]

IMPORTANCE_WEIGHTS: dict[str, Term] = {"none": no_weight, "truncated": truncated}
SURROGATES: dict[str, Term] = {"reinforce": reinforce, "ppo_clip": ppo_clip}
REDUCTIONS: dict[str, Denominator] = {"token_mean": token_mean, "dr_grpo_constant": dr_grpo_constant}


def make_loss(algorithm: Algorithm, *, max_new_tokens: int) -> Loss:
    """LossInputs -> (sum over tokens with gradient, its share of the global denominator); both scalars."""
    importance_weight = IMPORTANCE_WEIGHTS[algorithm.importance_weight]
    surrogate = SURROGATES[algorithm.surrogate]
    denominator = REDUCTIONS[algorithm.reduction]

    def loss(inputs: LossInputs) -> tuple[Tensor, Tensor]:
        weights = importance_weight(inputs, algorithm).detach()
        losses = weights * surrogate(inputs, algorithm)
        # Select, never multiply by zero: 0 x NaN would be NaN.
        total = torch.where(inputs.mask, losses, 0.0).sum()
        return total, denominator(inputs, max_new_tokens)

    return loss
