"""PPO with a critic, per token: generalized advantages, and the loss of the values.

Pure functions of a micro-batch's tokens, whose sequences are whole and in order. A response has ended after
its last token, also one that was cut off: its value there is 0 (`asyncrl check` says so).

Shapes: T response tokens.
"""

import torch
from torch import Tensor


def generalised_advantages(
    rewards: Tensor, values: Tensor, sequence_ids: Tensor, *, gamma: float, gae_lambda: float
) -> Tensor:
    """[T] A_t = sum_l (gamma lambda)^l delta_{t+l}, delta_t = r_t + gamma V_{t+1} - V_t (arXiv 1506.02438).

    `rewards` and `values` [T] float32: V_t is of the prompt and the response before token t; `sequence_ids`
    [T] ascending. Sums are float64 and of one sequence alone: packing changes no bit.
    """
    precise = values.double()
    advantages = rewards.double() + gamma * _from_later(precise, sequence_ids, 1) - precise
    # Sums of 1, 2, 4, ... terms: the second half of each is the sum of half as many terms, found before.
    factor, distance = gamma * gae_lambda, 1
    longest = int(torch.bincount(sequence_ids).max()) if len(sequence_ids) else 0
    while distance < longest:
        advantages = advantages + factor**distance * _from_later(advantages, sequence_ids, distance)
        distance *= 2
    return advantages.to(values.dtype)


def _from_later(values: Tensor, sequence_ids: Tensor, distance: int) -> Tensor:
    """[T]: the value `distance` tokens later in the same sequence, 0 behind its end."""
    moved = torch.zeros_like(values)
    is_same = sequence_ids[distance:] == sequence_ids[:-distance]
    moved[:-distance] = torch.where(is_same, values[distance:], 0.0)
    return moved


def end_rewards(rewards: Tensor, sequence_ids: Tensor) -> Tensor:
    """[T]: a trajectory's reward, which all of its tokens have in `rewards`, at its last token; else 0."""
    is_last = torch.ones_like(sequence_ids, dtype=torch.bool)
    is_last[:-1] = sequence_ids[1:] != sequence_ids[:-1]
    return torch.where(is_last, rewards, 0.0)


def clipped_value_loss(values: Tensor, before: Tensor, targets: Tensor, clip: float | None) -> Tensor:
    """max((V - G)^2, (clip(V, V_before - c, V_before + c) - G)^2) / 2, G = A + V_before, c = value_clip

    Source: OpenAI's PPO code, by Huang et al. 2022, "The 37 Implementation Details of Proximal Policy
    Optimization".
    Use: several optimizer steps per batch: bounds how far they move a value. With one it never binds.
    Fails: with rewards much larger than the clip a critic learns slowly.
    """
    errors = (values - targets).square()
    if clip is not None:
        bounded = before + (values - before).clamp(-clip, clip)
        errors = torch.maximum(errors, (bounded - targets).square())
    return errors / 2
