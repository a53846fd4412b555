"""PPO with a critic, per token: generalized advantages, and the loss of the values.

Pure functions of a micro-batch's tokens, whose sequences are whole and in order. The value behind a
response's last token is 0, unless `continued` adds one to its reward.

Shapes: T response tokens.
"""

import torch
from torch import Tensor


def generalised_advantages(
    rewards: Tensor, values: Tensor, sequence_ids: Tensor, *, gamma: float, gae_lambda: float | Tensor
) -> Tensor:
    """[T] A_t = sum_l (gamma lambda)^l delta_{t+l}, delta_t = r_t + gamma V_{t+1} - V_t (arXiv 1506.02438).

    `rewards` and `values` [T] float32: V_t is of the prompt and the response before token t; `sequence_ids`
    [T] ascending; `gae_lambda` one for all, or [T], the same for all tokens of a sequence. Sums are float64
    and of one sequence alone: packing changes no bit.
    """
    precise = values.double()
    errors = rewards.double() + gamma * _from_later(precise, sequence_ids, 1) - precise
    return _discounted(errors, gamma * gae_lambda * torch.ones_like(errors), sequence_ids).to(values.dtype)


def v_trace(
    rewards: Tensor,
    values: Tensor,
    ratios: Tensor,
    sequence_ids: Tensor,
    *,
    gamma: float,
    gae_lambda: float,
    cap: float,
) -> tuple[Tensor, Tensor]:
    """v_t = V_t + c_t delta_t + gamma lambda c_t (v_{t+1} - V_{t+1}), A_t = r_t + gamma v_{t+1} - V_t;
    c = min(v_trace_cap, ratio of the policy before the step to the one that sampled)

    Source: V-trace, Espeholt et al. 2018 (IMPALA, arXiv 1802.01561), with both caps one. Where every ratio is
    1, v is that of generalized advantages with the same lambda; the policy's loss multiplies A by c, which is
    `algorithm.importance_weight`.
    Use: a critic on stale data: its targets are of the trainer's policy, not of those that sampled.
    Fails: products of ratios shrink along a response: what a late reward teaches early tokens fades.
    """
    precise, earned = values.double(), rewards.double()
    capped = ratios.double().clamp(max=cap)
    errors = earned + gamma * _from_later(precise, sequence_ids, 1) - precise
    targets = precise + _discounted(capped * errors, gamma * gae_lambda * capped, sequence_ids)
    advantages = earned + gamma * _from_later(targets, sequence_ids, 1) - precise
    return targets.to(values.dtype), advantages.to(values.dtype)


def length_adaptive_lambda(sequence_ids: Tensor, alpha: float) -> Tensor:
    """lambda = 1 - 1 / (alpha l) of a trajectory with l sampled tokens in all of its branches, 0 where l is
    at most 1 / alpha

    Source: VAPO, Yue et al. 2025 (arXiv 2504.05118), alpha 0.05; SAO, alpha 1.5; NeMo-RL's
    length_adaptive_alpha.
    Use: responses of very different lengths: a reward reaches about alpha l tokens back, whatever l is, while
    the critic's own lambda (`critic.gae_lambda`) stays 1.
    Fails: leans on the critic for short responses: pretrain it (`critic.warmup_steps`), as its source does.
    """
    lengths = torch.bincount(sequence_ids)[sequence_ids].double()
    return (1 - 1 / (alpha * lengths)).clamp(min=0)


def chained(
    advantages: Tensor, line_ids: Tensor, sequence_ids: Tensor, *, gamma: float, gae_lambda: float | Tensor
) -> Tensor:
    """[T] (gamma lambda)^n A_t, n = sampled tokens of the later branches of the trajectory

    Source: CompactionRL, 2026 (arXiv 2607.05378), where each context after a summary is such a branch.
    Use: contexts that are summed up: an early context is as far from the outcome as its tokens are.
    Fails: branches that run side by side, such as an agent's, have no order in time.

    `line_ids` [T] of branches, ascending within the ascending `sequence_ids` of trajectories.
    """
    ends = torch.bincount(sequence_ids).cumsum(0)[sequence_ids]
    num_later = ends - torch.bincount(line_ids).cumsum(0)[line_ids]
    factors = (gamma * gae_lambda * torch.ones_like(advantages, dtype=torch.float64)) ** num_later
    return (advantages.double() * factors).to(advantages.dtype)


def _discounted(terms: Tensor, factors: Tensor, sequence_ids: Tensor) -> Tensor:
    """[T] x_t = terms_t + factors_t x_{t+1}, of each sequence by itself."""
    # Of 1, 2, 4, ... terms: the second half of each is that of half as many, found before.
    longest, distance = int(torch.bincount(sequence_ids).max()) if len(sequence_ids) else 0, 1
    while distance < longest:
        terms = terms + factors * _from_later(terms, sequence_ids, distance)
        factors = factors * _from_later(factors, sequence_ids, distance)
        distance *= 2
    return terms


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


def continued(rewards: Tensor, values: Tensor, line_ids: Tensor, is_cut: Tensor, *, gamma: float) -> Tensor:
    """[T] r_t + gamma V_t at the last token of each line that was cut off, else r_t

    Source: StepFun's MIS-PO, whose truncated trajectories end with the value of their last state.
    Use: limits that cut off what might have become right (`critic.cut_off`).
    Fails: the state behind the last token has no value of its own: that of the state before it stands in.

    `is_cut` [T] bool: the trajectory of each token was cut off.
    """
    return rewards + gamma * torch.where(is_cut, end_rewards(values, line_ids), 0.0)


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
