"""Surrogates: what a step minimizes per token, before its importance weight; and what each of them clipped.

Below, r = pi / pi_prox of one token (pi / mu with clip_around: behavior), A its advantage, low and high are
clip_low and clip_high (no lower bound where clip_low is null), sg[] is a value without gradient. The mask is
of the tokens that survived weights and rejections: means over a sequence are over these, and a token of a
sequence term has the gradient of its own log-prob alone, so that weights, rejections and advantages per token
keep their meaning. Shapes: T response tokens.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from asyncrl.algorithms.inputs import LossInputs, bounded_exp, bounded_ratio, sequence_mean, through_own_token
from asyncrl.recipe import Algorithm, PpoClip, Sapo, chosen


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
    is unbounded. With one optimizer step per batch r is 1, and it clips nothing (unless around behavior).
    """
    ratio = bounded_ratio(inputs.current, anchor(inputs, algorithm))
    clipped = ratio.clamp(*clip_range(algorithm))
    losses = -torch.minimum(ratio * inputs.advantages, clipped * inputs.advantages)
    dual_clip = chosen(algorithm.surrogate, PpoClip).dual_clip
    if dual_clip is None:
        return losses
    return torch.where(inputs.advantages < 0, torch.minimum(losses, -dual_clip * inputs.advantages), losses)


def ratio(inputs: LossInputs, algorithm: Algorithm) -> Tensor:
    """-r A

    Source: the importance-sampled policy gradient; prime-rl's loss (2026), with r against the policy that
    sampled.
    Use: with a trust region, which then is all that bounds a step.
    Fails: without one nothing does; a token of large r outweighs a batch.
    """
    return -through_own_token(bounded_ratio(inputs.current, anchor(inputs, algorithm)), inputs) * (
        inputs.advantages
    )


def sapo(inputs: LossInputs, algorithm: Algorithm) -> Tensor:
    """-A (4 / tau) sigmoid(tau (r - 1)), tau = tau_positive where A > 0, else tau_negative

    Source: SAPO, Qwen team 2025 (arXiv 2511.20347), with 1.0 and 1.05; verl computes it under sequence_mean.
    Use: in place of a clip: the gradient falls smoothly on both sides of r = 1, faster where A < 0.
    Fails: with one optimizer step per batch r is 1, and it damps nothing (unless around behavior); a token
    that moved against its advantage is damped like one that overshot.
    """
    moved = bounded_ratio(inputs.current, anchor(inputs, algorithm))
    taus = chosen(algorithm.surrogate, Sapo)
    steep = moved.new_tensor([taus.tau_negative, taus.tau_positive])
    tau = steep[(inputs.advantages > 0).long()]
    return -inputs.advantages * 4 / tau * torch.sigmoid(tau * (moved - 1))


def gspo(inputs: LossInputs, algorithm: Algorithm) -> Tensor:
    """-min(s_t A, clip(s_t, 1 - low, 1 + high) A), s_t = sg[s] pi_t / sg[pi_t], s = exp(mean_t log r_t)

    Source: GSPO-token, Zheng et al. 2025 (arXiv 2507.18071, eq. 13 and 14); with one advantage per sequence
    and reduction sequence_mean its gradient is GSPO's (eq. 5).
    Use: mixtures of experts and long responses, whose token ratios are noise; takes clip_low 3e-4, clip_high
    4e-4.
    Fails: with PPO's clip range of 0.2 it never clips; a clipped sequence is lost as a whole.
    """
    ratio = through_own_token(_sequence_ratio(inputs, algorithm), inputs)
    clipped = ratio.clamp(*clip_range(algorithm))
    return -torch.minimum(ratio * inputs.advantages, clipped * inputs.advantages)


def cispo(inputs: LossInputs, algorithm: Algorithm) -> Tensor:
    """-sg[clip(r, 1 - low, 1 + high)] A log pi

    Source: CISPO, MiniMax 2025 (arXiv 2506.13585, eq. 4 and 5), which sets no lower bound; nor does the
    default.
    Use: every token keeps its gradient: the weight is clipped, not the update.
    Fails: no token ever stops, so that many steps on one batch can run away.
    """
    ratio = bounded_ratio(inputs.current, anchor(inputs, algorithm)).detach()
    return -ratio.clamp(*clip_range(algorithm)) * inputs.advantages * inputs.current


def gmpo(inputs: LossInputs, algorithm: Algorithm) -> Tensor:
    """-A g_t, g_t = sg[g] pi_t / sg[pi_t], or sg[g] where t is clipped; g = exp(mean_t c_t), c = min(log r,
    log(1 + high)) where A > 0, max(log r, log(1 - low)) where A < 0

    Source: GMPO, Zhao et al. 2025 (arXiv 2507.20673): its gradient with one advantage per sequence and
    reduction sequence_mean; its bounds e^-0.4 and e^0.4 are the default. Weights are in the geometric mean.
    Use: a geometric mean over a response forgives single outlying ratios; stands wide clip ranges.
    Fails: clips per token but scales per sequence: a few tokens that moved far still weigh on all the others.
    """
    log_ratio = (inputs.current - anchor(inputs, algorithm)).detach()
    low, high = (log_ratio.new_tensor(bound).log() for bound in clip_range(algorithm))
    bounded = torch.where(inputs.advantages > 0, log_ratio.minimum(high), log_ratio)
    bounded = torch.where(inputs.advantages < 0, log_ratio.maximum(low), bounded)
    mean = bounded_exp(sequence_mean(bounded, inputs))
    ratio = torch.where(bounded == log_ratio, through_own_token(mean, inputs), mean)
    return -inputs.advantages * ratio


def anchor(inputs: LossInputs, algorithm: Algorithm) -> Tensor:
    """[T] log-probs of the policy that ratios are taken against."""
    return inputs.behavior if algorithm.clip_around == "behavior" else inputs.proximal


def clip_range(algorithm: Algorithm) -> tuple[float, float]:
    """The ratios between which nothing is clipped; 0 is below every ratio."""
    low = 0.0 if algorithm.clip_low is None else 1 - algorithm.clip_low
    return low, 1 + algorithm.clip_high


def _sequence_ratio(inputs: LossInputs, algorithm: Algorithm) -> Tensor:
    """[T] exp(mean_t log r_t), each token with its sequence's."""
    return bounded_exp(sequence_mean(inputs.current - anchor(inputs, algorithm), inputs))


SURROGATES = {
    "reinforce": reinforce,
    "ratio": ratio,
    "ppo_clip": ppo_clip,
    "gspo": gspo,
    "cispo": cispo,
    "gmpo": gmpo,
    "sapo": sapo,
}


def _clips_none(inputs: LossInputs, algorithm: Algorithm) -> Tensor:
    return torch.zeros_like(inputs.mask)


def _clips_by_token(inputs: LossInputs, algorithm: Algorithm) -> Tensor:
    """Where the token lost its gradient because its own ratio moved far enough."""
    ratio = bounded_ratio(inputs.current, anchor(inputs, algorithm))
    is_clipped = _is_beyond(ratio, inputs, algorithm)
    surrogate = algorithm.surrogate
    if not isinstance(surrogate, PpoClip) or surrogate.dual_clip is None:
        return is_clipped
    return is_clipped | ((inputs.advantages < 0) & (ratio > surrogate.dual_clip))


def _clips_by_sequence(inputs: LossInputs, algorithm: Algorithm) -> Tensor:
    """Where the token lost its gradient because its sequence's ratio moved far enough."""
    return _is_beyond(_sequence_ratio(inputs, algorithm), inputs, algorithm)


def _clips_the_weight(inputs: LossInputs, algorithm: Algorithm) -> Tensor:
    """Where the token kept a gradient of another size."""
    low, high = clip_range(algorithm)
    ratio = bounded_ratio(inputs.current, anchor(inputs, algorithm))
    return ((ratio < low) | (ratio > high)) & (inputs.advantages != 0)


def _is_beyond(ratio: Tensor, inputs: LossInputs, algorithm: Algorithm) -> Tensor:
    low, high = clip_range(algorithm)
    return ((inputs.advantages > 0) & (ratio > high)) | ((inputs.advantages < 0) & (ratio < low))


CLIPS: dict[str, Callable[[LossInputs, Algorithm], Tensor]] = {
    "reinforce": _clips_none,
    "ratio": _clips_none,
    "ppo_clip": _clips_by_token,
    "gspo": _clips_by_sequence,
    "cispo": _clips_the_weight,
    "gmpo": _clips_by_token,
    "sapo": _clips_none,
}
"""[T] bool by surrogate: whether the clip changed what a token teaches; none for the recipe's own."""
