"""Reductions: from losses per token to one number, by a scale per token and a denominator that is global.

Nothing here averages: numerator and denominator are summed over micro-batches and ranks first. Below, l are
the losses, L = max_new_tokens. Shapes: T response tokens.
"""

import torch
from torch import Tensor

from asyncrl.algorithms.inputs import LossInputs, sequence_lengths, sequence_sum


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
