"""Inputs of the terms of the loss, the sums over a sequence that several terms need, and proximal policies,
which policy ratios are taken against and importance weights correct for.

A micro-batch holds whole sequences (packing never cuts one), so a sum over a sequence is local to it. Shapes:
T response tokens of one micro-batch, N its sequences.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0
"""Log-ratios are bounded to +-20 before exp: e^20 = 5e8 is beyond any cap, and finite in float32."""


@dataclass(frozen=True, slots=True)
class LossInputs:
    """Inputs of every term."""

    current: Tensor
    """[T] float32 log-probs of the policy in training, with gradient."""
    proximal: Tensor
    """[T] float32 log-probs of the proximal policy, no gradient: by default the policy before this step."""
    behavior: Tensor
    """[T] float32 log-probs as sampled; finite, also where `mask` is False."""
    advantages: Tensor
    """[T] float32, each token has its trajectory's or its turn's, less what KL in the reward takes."""
    mask: Tensor
    """[T] bool; False takes a token out of numerator and denominator. Weights and rejections get the tokens
    that count; a surrogate gets those that survived them: True where the weight is not 0."""
    sequence_ids: Tensor
    """[T] int64, the token's trajectory within the micro-batch, ascending."""
    prompt_lengths: Tensor | None = None
    """[T] float32, the tokens that count of all responses to the token's prompt, over all micro-batches and
    ranks of the optimizer step; None where no term needs them."""
    entropies: Tensor | None = None
    """[T] float32 entropy of the current policy over all tokens where each came from, with gradient."""
    reference: Tensor | None = None
    """[T] float32 log-probs of the frozen reference, over all tokens; None without one."""
    whole: Tensor | None = None
    """[T] float32 log-probs of the current policy over all tokens, with gradient, where servers sampled from
    some of them, which `current`, `proximal` and `behavior` are over; None where `current` is over all."""
    evaluated: Tensor | None = None
    """[T] float32 log-probs of the policy that `proximal` was interpolated from, no gradient; None where
    `proximal` was evaluated itself."""
    imitated: Tensor | None = None
    """[T] float32, weight of the token's negative log-likelihood: for those of correct responses the number
    of tokens that count over that of theirs, in the optimizer step; else 0. None without such a term."""
    second_moment_bound: float = math.inf
    """Squared log-ratio up to which the rejection second_moment and the trust region second_moment_clip keep
    the tokens that they judge: found over all micro-batches and ranks of the optimizer step
    (`rejections.find_second_moment_bound`)."""

    hit: Tensor | None = None
    """[T] bool, the tokens that algorithm.entropy_control holds back: found over all micro-batches and ranks
    of the optimizer step; None without one."""

    is_top: Tensor | None = None
    """[T] bool, the tokens of the highest entropy of the optimizer step, of all micro-batches and ranks; None
    where algorithm.top_entropy_share is 1."""

    entropy_coefficient: float | None = None
    """Weight of the entropy bonus in this step; None: algorithm.entropy_bonus.coefficient."""

    forward_kl: Tensor | None = None
    """[T] float32, `distillation.top_k_forward_kl` to the teacher, with gradient; None without
    teacher.top_k."""

    forward_kl_coefficient: float = 0.0
    """teacher.top_k_coefficient."""

    sampled: Tensor | None = None
    """[T] float32 log-probs of the trainer's own policy of each stale token's version, NaN of other tokens
    and of versions that are not kept; None where they were not evaluated. For metrics alone."""

    lags: Tensor | None = None
    """[T] int64, versions between the policy that sampled the token and the one in training. This and the
    next three are for terms of the recipe's own, and None without one."""
    versions: Tensor | None = None
    """[T] int64, the policy version that sampled the token."""
    finishes: tuple[str, ...] | None = None
    """[N] how each sequence ended: stop, or length where it was cut off."""
    sources: tuple[str, ...] | None = None
    """[N] the source of each sequence's row: a file's stem, or a name and a split."""

    sequence_count: int | None = None
    """N, where the host knows it: to read it off `sequence_ids` makes the host wait for a GPU."""

    def unfiltered(self) -> Tensor:
        """[T] log-probs of the current policy over all tokens, with gradient."""
        return self.current if self.whole is None else self.whole

    def policy(self) -> Tensor:
        """[T] log-probs of the policy, without gradient, whose distance from `behavior` a step reports."""
        return self.proximal if self.evaluated is None else self.evaluated

    def num_sequences(self) -> int:
        if self.sequence_count is not None:
            return self.sequence_count
        return int(self.sequence_ids.max()) + 1 if len(self.sequence_ids) else 0


def bounded_exp(log_ratio: Tensor) -> Tensor:
    """exp, with its argument bounded to +-MAX_LOG_RATIO."""
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def bounded_ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """exp(numerator - denominator), [T] -> [T], with the log-ratio bounded to +-MAX_LOG_RATIO."""
    return bounded_exp(numerator - denominator)


def pushes_on(moved: Tensor, inputs: LossInputs) -> Tensor:
    """[T] bool: the token has moved in the direction in which its advantage pushes on. `moved` is [T], a
    difference of log-probs or of probabilities to where it was sampled."""
    return (inputs.advantages > 0) & (moved > 0) | (inputs.advantages < 0) & (moved < 0)


def through_own_token(values: Tensor, inputs: LossInputs) -> Tensor:
    """[T] `values`, with the gradient values * grad(log pi) of the own token alone."""
    return values.detach() * (inputs.current - inputs.current.detach()).exp()


def per_token(values: Sequence[float], inputs: LossInputs) -> Tensor:
    """[N] -> [T] float32: each token gets the number of its sequence."""
    return torch.tensor(values, dtype=torch.float32, device=inputs.mask.device)[inputs.sequence_ids]


def sequence_sum(values: Tensor, inputs: LossInputs) -> Tensor:
    """[T] -> [N], over the tokens that count."""
    counted = torch.where(inputs.mask, values, torch.zeros_like(values))
    return counted.new_zeros(inputs.num_sequences()).index_add(0, inputs.sequence_ids, counted)


def sequence_lengths(inputs: LossInputs) -> Tensor:
    """[N], tokens that count; at least 1, so that it may divide."""
    return sequence_sum(torch.ones_like(inputs.proximal), inputs).clamp(min=1)


def sequence_mean(values: Tensor, inputs: LossInputs) -> Tensor:
    """[T] -> [T]: each token gets the mean over the tokens of its sequence that count."""
    return (sequence_sum(values, inputs) / sequence_lengths(inputs))[inputs.sequence_ids]


def sequence_total(values: Tensor, inputs: LossInputs) -> Tensor:
    """[T] -> [T]: each token gets the sum over the tokens of its sequence that count."""
    return sequence_sum(values, inputs)[inputs.sequence_ids]


def forward(policy: Tensor, behavior: Tensor, lags: Tensor) -> Tensor:
    """pi_prox = the policy before the batch's first optimizer step, evaluated

    Source: decoupled PPO, Hilton et al. 2022 (arXiv 2110.00641); AReaL, Fu et al. 2025 (arXiv 2505.24298).
    Use: the default: exact, and free at one optimizer step per batch, where p itself is it.
    Fails: several optimizer steps per batch cost a forward pass over the whole batch before the second one.
    """
    return policy


def interpolated(policy: Tensor, behavior: Tensor, lags: Tensor) -> Tensor:
    """log pi_prox = log mu + (1 - 1/k) (log sg[p] - log mu), k the token's staleness; pi_prox = p at k = 0

    Source: A-3PO, Li et al. 2025 (arXiv 2512.06547); AReaL's prox_logp_method loglinear.
    Use: several optimizer steps per batch on stale data, without the forward pass; at one step it lets the
    clip bind: the ratio is (p / mu)^(1/k).
    Fails: assumes that the policy moved evenly over k versions; the engines' mismatch counts as movement.
    Weights and rejections see k - 1 of k parts of it, at k = 1 none; at k = 0 nothing is ever clipped.
    """
    parts = lags.clamp(min=1).to(policy.dtype)
    mixed = behavior + (1 - 1 / parts) * (policy - behavior)
    return mixed.where(lags > 0, policy)


PROXIMALS = {"forward": forward, "interpolated": interpolated}
"""[T] log-probs from those of a policy and of mu, [T] without gradient, and the staleness in versions [T]."""
