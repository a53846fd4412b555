"""Importance weights: what a token sampled by mu is worth to the proximal policy; and reductions: from losses
per token to one number, by a scale per token and a global denominator.

Below, rho = pi_prox / mu of one token and prod rho that of its sequence, over all its tokens that count, also
those that a rejection takes out; C is cap, F floor, [lo, hi] is [mask_low, mask_high]; l are the losses, L =
max_new_tokens. No weight has a gradient. A weight scales the gradient of its token; under gmpo the geometric
mean of a sequence's weights does. Nothing here averages: numerator and denominator are summed over
micro-batches and ranks first. Shapes: T response tokens.
"""

import torch
from torch import Tensor

from asyncrl.algorithms.inputs import (
    LossInputs,
    bounded_exp,
    bounded_ratio,
    sequence_lengths,
    sequence_sum,
    sequence_total,
)
from asyncrl.recipe import Algorithm, SequenceMasked, Truncated, chosen


def none(inputs: LossInputs, algorithm: Algorithm) -> Tensor:
    """1

    Source: Shao et al. 2024 (arXiv 2402.03300), which trains on what it sampled as if it were on-policy.
    Use: synchronous runs (max_staleness 0) on engines that agree; the baseline of every comparison.
    Fails: staleness and train-inference mismatch go uncorrected, a bias that grows until a run collapses.
    """
    return torch.ones_like(inputs.proximal)


def truncated(inputs: LossInputs, algorithm: Algorithm) -> Tensor:
    """max(F, min(rho, C))

    Source: TIS, Yao et al. 2025, fengyao.notion.site/off-policy-rl; before it IMPALA's clipped rho, Espeholt
    et al. 2018 (arXiv 1802.01561). Both have no F.
    Use: the default: corrects small gaps between the policies token by token at bounded variance.
    Fails: a token weight ignores that the prefix was unlikely too; biased where the cap binds.
    """
    ratio = bounded_ratio(inputs.proximal, inputs.behavior)
    bounds = chosen(algorithm.importance_weight, Truncated)
    return ratio.clamp(bounds.floor, bounds.cap)


def sequence_truncated(inputs: LossInputs, algorithm: Algorithm) -> Tensor:
    """max(F, min(prod rho, C)), the same for each token of a sequence

    Source: sequence TIS, Liu et al. 2025, "When Speed Kills Stability".
    Use: the unbiased weight of a whole response, with only the cap's bias: short responses, small gaps.
    Fails: the log of prod rho grows with the length, so most long responses weigh nearly 0 or exactly C.
    """
    log_ratio = sequence_total(inputs.proximal - inputs.behavior, inputs)
    bounds = chosen(algorithm.importance_weight, Truncated)
    return bounded_exp(log_ratio).clamp(bounds.floor, bounds.cap)


def masked(inputs: LossInputs, algorithm: Algorithm) -> Tensor:
    """rho where lo <= rho <= hi, else 0

    Source: IcePop, Ling Team 2025 (arXiv 2510.18855).
    Use: engines that disagree badly on few tokens (mixtures of experts, low precision): these teach nothing.
    Fails: with staleness, tokens that training moved most leave the range, so that learning slows there.
    """
    ratio = bounded_ratio(inputs.proximal, inputs.behavior)
    is_inside = (ratio >= algorithm.mask_low) & (ratio <= algorithm.mask_high)
    return torch.where(is_inside, ratio, torch.zeros_like(ratio))


def sequence_masked(inputs: LossInputs, algorithm: Algorithm) -> Tensor:
    """prod rho where prod rho <= C, else 0, the same for each token of a sequence

    Source: sequence MIS, Liu et al. 2025, "When Speed Kills Stability".
    Use: drops whole responses that the trainer finds far likelier than the server did, often corrupt ones.
    Fails: prod rho widens with the length, so that long responses are dropped for being long.
    """
    ratio = bounded_exp(sequence_total(inputs.proximal - inputs.behavior, inputs))
    return torch.where(ratio <= chosen(algorithm.importance_weight, SequenceMasked).cap, ratio, 0.0)


WEIGHTS = {
    "none": none,
    "truncated": truncated,
    "sequence_truncated": sequence_truncated,
    "masked": masked,
    "sequence_masked": sequence_masked,
}


def token_mean(inputs: LossInputs, max_new_tokens: int) -> tuple[Tensor, Tensor]:
    """sum l / number of tokens

    Source: DAPO, Yu et al. 2025 (arXiv 2503.14476, eq. 8).
    Use: the default: every token of the batch weighs the same, so that long responses are held to account.
    Fails: a few very long responses make up most of a step.
    """
    return torch.ones_like(inputs.proximal), inputs.mask.sum()


def dr_grpo_constant(inputs: LossInputs, max_new_tokens: int) -> tuple[Tensor, Tensor]:
    """sum l / (number of sequences x L)

    Source: Dr.GRPO, Liu et al. 2025 (arXiv 2503.20783).
    Use: independent of the lengths sampled: neither short right nor long wrong answers are favored.
    Fails: steps are small where responses are far shorter than L; the learning rate must make up for it.
    """
    ones = torch.ones_like(inputs.proximal)
    num_tokens = ones.new_zeros(inputs.num_sequences()).index_add(0, inputs.sequence_ids, ones)
    return ones, num_tokens.count_nonzero() * max_new_tokens


def sequence_mean(inputs: LossInputs, max_new_tokens: int) -> tuple[Tensor, Tensor]:
    """sum over sequences of (sum l / its tokens), / number of sequences

    Source: GRPO, Shao et al. 2024 (arXiv 2402.03300, eq. 3); GSPO and GMPO are defined with it.
    Use: every response weighs the same, long or short.
    Fails: a token of a long response weighs less: long wrong answers are punished too little and grow.
    """
    counts = sequence_sum(torch.ones_like(inputs.proximal), inputs)
    return (1 / sequence_lengths(inputs))[inputs.sequence_ids], counts.count_nonzero()


def prompt_mean(inputs: LossInputs, max_new_tokens: int) -> tuple[Tensor, Tensor]:
    """sum over prompts of (sum l of its responses / their tokens), / number of prompts

    Source: ScaleRL, Khatri et al. 2025 (arXiv 2510.13786, section 3.2).
    Use: every prompt weighs the same, however long its responses are; within a prompt, every token.
    Fails: a prompt with few tokens left weighs as much as any other.
    """
    assert inputs.prompt_lengths is not None
    # A prompt's responses may lie in several micro-batches, which each give their tokens' share of it.
    shares = 1 / inputs.prompt_lengths
    return shares, torch.where(inputs.mask, shares.double(), 0.0).sum()


REDUCTIONS = {
    "token_mean": token_mean,
    "dr_grpo_constant": dr_grpo_constant,
    "sequence_mean": sequence_mean,
    "prompt_mean": prompt_mean,
}
