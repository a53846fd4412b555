"""The policy against another model: KL to a frozen reference, what a teacher adds, losses of preferred pairs.

Below, d = log pi - log pi_ref of one token, and r = pi / mu the ratio to the policy that sampled it, without
correction by an importance weight. No d is so large that the pull ends: beyond d = -20 exponentials become
straight lines, finite in float32. h is [N] float64 of N pairs: (ln p(chosen) - ln p(rejected)) of the policy,
less that of the reference. Shapes: T response tokens.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from asyncrl.algorithms.inputs import MAX_LOG_RATIO, LossInputs, bounded_ratio


def k1(policy: Tensor, reference: Tensor) -> Tensor:
    """d

    Source: Schulman 2020, joschu.net/blog/kl-approx.html.
    Use: in the reward, where its policy gradient is the exact one of the KL.
    Fails: in the loss its expected gradient is zero: it only adds noise. Often negative for a single token.
    """
    return policy - reference


def k2(policy: Tensor, reference: Tensor) -> Tensor:
    """d^2 / 2

    Source: Schulman 2020, joschu.net/blog/kl-approx.html.
    Use: in the loss: its gradient d grad(log pi) is, on-policy, that of the KL.
    Fails: its value is biased where the policies are far apart.
    """
    return k1(policy, reference).square() / 2


def k3(policy: Tensor, reference: Tensor) -> Tensor:
    """exp(-d) - 1 + d

    Source: Schulman 2020, joschu.net/blog/kl-approx.html; GRPO's choice (arXiv 2402.03300, eq. 4).
    Use: in the loss, as GRPO does: unbiased as a value, never negative, calm.
    Fails: its gradient (1 - exp(-d)) grad(log pi) is of another divergence: bounded where pi is likelier,
    exploding where the reference is.
    """
    difference = k1(policy, reference)
    # exp(-d) up to d = -20, its tangent beyond.
    beyond = (-difference - MAX_LOG_RATIO).clamp(min=0)
    return (-difference - beyond).exp() + math.exp(MAX_LOG_RATIO) * beyond - 1 + difference


def k3_plus(policy: Tensor, reference: Tensor) -> Tensor:
    """exp(-d) - 1 + d as a value, with the gradient d grad(log pi) of k2

    Source: verl's k3+ (2025), after arXiv 2510.01555 (2025).
    Use: in the loss: k3's number to look at, and the gradient that is, on-policy, that of the KL.
    Fails: value and gradient are of two functions: a check by differences fails. Off-policy it is biased.
    """
    pull = k2(policy, reference)
    return k3(policy, reference).detach() + pull - pull.detach()


def unbiased(policy: Tensor, reference: Tensor, inputs: LossInputs) -> Tensor:
    """r (exp(-d) - 1 + d), with the gradient through r: r d grad(log pi)

    Source: DeepSeek-V3.2 2025 (arXiv 2512.02556, eq. 7).
    Use: in the loss of stale batches: the KL of the policy in training, whatever policy sampled.
    Fails: r is not truncated, so that few tokens may carry it.
    """
    # Written as it is: where k3 is a tangent, its own gradient would not cancel to r d.
    weights = bounded_ratio(inputs.current, inputs.behavior).detach()
    return weights * k3_plus(policy, reference)


DIVERGENCES = {"k1": k1, "k2": k2, "k3": k3, "k3_plus": k3_plus}
"""Divergences of two log-probs."""
WEIGHTED_DIVERGENCES = {"unbiased": unbiased}
"""Divergences that ask for the policy that sampled as well."""


def divergence(name: str, inputs: LossInputs) -> Tensor:
    """[T] the estimate by that name, over all tokens, from a token's loss inputs with a reference."""
    assert inputs.reference is not None, "KL in the loss needs the reference's log-probs"
    if name in WEIGHTED_DIVERGENCES:
        return WEIGHTED_DIVERGENCES[name](inputs.unfiltered(), inputs.reference, inputs)
    return DIVERGENCES[name](inputs.unfiltered(), inputs.reference)


def behavior_divergence(inputs: LossInputs) -> Tensor:
    """(log r)^2

    Source: prime-rl's kl_tau (2026), there 1e-3.
    Use: with a trust region: leads the tokens outside, which have no other gradient, back to their sampler.
    Fails: holds the policy back everywhere else too; the weight must stay small.
    """
    return (inputs.current - inputs.behavior).square()


def teacher_advantages(behavior: Tensor, teacher: Tensor, coefficient: float) -> Tensor:
    """c (ln t - ln mu) of each token, [T] -> [T] float32; 0 where `behavior` is not finite

    ln t is the teacher's log-prob and ln mu that of the policy that sampled, both at the sampling
    temperature: the gradient of -sum_t KL-hat_t, where each token answers for its own term alone (discount
    0). Its mean is -c KL(mu || t), estimated from tokens of mu.
    Source: on-policy distillation, Agarwal et al. 2024 (GKD, arXiv 2306.13649) with reverse KL as a reward,
    Gu et al. 2024 (MiniLLM, arXiv 2306.08543) without its return; "On-Policy Distillation", Thinking Machines
    2025; Qwen3 (arXiv 2505.09388).
    Use: a stronger model with the same tokenizer: a signal at each token, also where no verifier has a word.
    Fails: a teacher has little to say of text that it would never write: far from it, begin with sft. Tokens
    that it finds nearly impossible have advantages of any size: watch grad_norm."""
    found = coefficient * (teacher - behavior)
    return torch.where(behavior.isfinite(), found, 0.0)


def top_k_forward_kl(teacher: Tensor, mean: Tensor) -> Tensor:
    """sum_v t(v) (ln t(v) - ln p(v)) over the teacher's k likeliest tokens, [T, k], [T] -> [T], with the
    gradient of `mean`

    `teacher` are their ln t, and `mean` is sum_v t(v) ln p(v), both of distributions over all tokens at the
    sampling temperature. What the teacher gives to other tokens is left out, and nothing is renormalized, as
    in verl's forward_kl_topk: with M the sum of these t(v), the gradient in the logits is M p(v) - t(v) at
    the k tokens and M p(v) at all others, so that it is least, M ln M <= 0, at p(v) = t(v) / M.
    Source: GKD, Agarwal et al. 2024 (arXiv 2306.13649), on the student's own text; its top k as in verl.
    Use: the whole of a teacher's opinion in place of one sampled token's: less noise, and mass where the
    student has none. Stale tokens need no weight: it is asked of the policy itself, where the text is.
    Fails: k of 1 knows no doubt of the teacher; a small M pushes away what the teacher would write: watch
    teacher_top_mass."""
    entropies: Tensor = torch.special.entr(teacher.exp()).sum(-1)
    return -entropies - mean


def dpo(h: Tensor, *, beta: float, label_smoothing: float = 0.0) -> Tensor:
    """-(1 - e) ln sigmoid(beta h) - e ln sigmoid(-beta h), e the label smoothing; log-probs are sums

    Source: Rafailov et al. 2023 (arXiv 2305.18290); cDPO, Mitchell 2023.
    Use: pairs of which some disagree.
    Fails: the likelihood of the chosen responses may fall, too; pairs that all agree pull without end.
    """
    return -(1 - label_smoothing) * logsigmoid(beta * h) - label_smoothing * logsigmoid(-beta * h)


def ipo(h: Tensor, *, beta: float) -> Tensor:
    """(h - 1 / (2 beta))^2; log-probs are means

    Source: Azar et al. 2023 (arXiv 2310.12036); means as in TRL and its authors' reply there.
    Use: pairs that all agree: h has a goal.
    """
    return (h - 1 / (2 * beta)).square()
