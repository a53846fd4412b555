"""The terms that the section `algorithm` chooses from, with their numbers. Their formulas stand in
`asyncrl.algorithms`, which imports torch; `asyncrl algorithms` prints them."""

import math
from typing import Annotated, Literal

from pydantic import Field

from asyncrl.recipe.sections.section import Count, Fraction, NonNegativeFloat, PositiveFloat
from asyncrl.recipe.terms import Group, OneOf, OwnFunction, Term

ProbabilityChange = Annotated[float, Field(gt=0, lt=1)]


class PlainAdvantage(Term):
    name: Literal[
        "grpo",
        "dr_grpo",
        "rloo",
        "remax",
        "reinforce_pp",
        "reinforce_pp_baseline",
        "opo",
        "max_rl",
        "batch_mean",
    ]


class Gdpo(Term):
    name: Literal["gdpo"]
    part_weights: dict[str, Annotated[float, Field(allow_inf_nan=False)]] = {}
    """Weight of each named score (Verdict.scores, such as the parts of the verifier weighted); 1 for those
    not named, 0 leaves one out. `credits` are the rewards of turns and spans."""


class PassAtK(Term):
    name: Literal["pass_at_k", "pass_at_k_training"]
    k: Annotated[int, Field(ge=2)] = 4
    """Answers that the best is taken of. At most rollout.samples_per_group; for pass_at_k_training below it,
    since the whole group is one subset, which has no std."""


class WReinforce(Term):
    name: Literal["w_reinforce"]
    positive_scale: Fraction = 0.1
    """Weight of right answers, where wrong ones have 1. 0: learns from wrong ones alone."""


class AsymRe(Term):
    name: Literal["asym_re"]
    offset: Annotated[float, Field(lt=0, allow_inf_nan=False)] = -0.1
    """Moves the baseline below the group mean: right answers weigh more than wrong ones."""


class Gae(Term):
    name: Literal["gae"]
    gae_lambda: Fraction = 1.0
    """1: Monte Carlo, no bias from the critic. 0: one-step TD."""
    length_alpha: PositiveFloat | None = None
    """Lambda for a response of l tokens: 1 - 1 / (length_alpha l), 0 for short ones, in the place of
    gae_lambda, which stays the critic's (VAPO: 0.05). For responses of very different lengths."""
    gamma: Fraction = 1.0
    """Discount per token."""
    is_whitened: bool = True
    """Whitens advantages over the tokens of the batch."""
    branches: Literal["outcome", "chain"] = "outcome"
    """A branch of a trajectory, such as a context after a summary (turns.summarize).
    outcome: ends with the trajectory's reward, whatever comes after it.
    chain: besides, its advantages are multiplied by (gamma lambda)^n, n the sampled tokens of later branches
    (CompactionRL)."""


Advantage = Annotated[
    OwnFunction | PlainAdvantage | Gdpo | PassAtK | WReinforce | AsymRe | Gae, OneOf("grpo")
]


class PlainWeight(Term):
    name: Literal["none", "masked"]


class Capped(Term):
    cap: PositiveFloat = 2.0
    """Upper bound of the ratio; sequence_masked drops responses above it."""


class Truncated(Capped):
    name: Literal["truncated", "sequence_truncated"]
    floor: NonNegativeFloat = 0.0
    """Lower bound of the ratio (0: none)."""


class SequenceMasked(Capped):
    name: Literal["sequence_masked"]


Weight = Annotated[OwnFunction | PlainWeight | Truncated | SequenceMasked, OneOf("truncated")]


class TokenRange(Term):
    name: Literal["token_range"]


class GeometricMean(Term):
    name: Literal["geometric_mean"]
    low: NonNegativeFloat = 0.99
    """Lower bound of a sequence's geometric mean ratio."""
    high: PositiveFloat = 1.01
    """Upper bound of a sequence's geometric mean ratio. Stale data needs a wider range."""


class SecondMoment(Term):
    name: Literal["second_moment"]
    limit: PositiveFloat = 0.04
    """Maximum mean squared log-ratio of the tokens that moved away, per optimizer step."""


class TokenVeto(Term):
    name: Literal["token_veto"]
    low: PositiveFloat = 1e-4
    """Lowest token ratio that is tolerated."""


class SequenceKl(Term):
    name: Literal["sequence_kl"]
    limit: PositiveFloat = 5e-3
    """Largest mean binary KL of a sequence's tokens, in nats."""


Rejection = Annotated[
    OwnFunction | TokenRange | GeometricMean | SecondMoment | TokenVeto | SequenceKl, OneOf()
]


class TotalVariation(Term):
    name: Literal["dppo_tv"]
    limit: ProbabilityChange = 0.15
    """Largest change of probability inside."""


class BinaryKl(Term):
    name: Literal["dppo_kl"]
    limit: PositiveFloat = 0.05
    """Largest binary KL inside."""


class Ipo(Term):
    name: Literal["ipo"]
    limit: ProbabilityChange = 0.3
    """Largest change of probability inside."""


class Kpop(Term):
    name: Literal["kpop"]
    limit: PositiveFloat = 0.1
    """Largest binary KL inside."""


class Band(Term):
    name: Literal["band"]
    low: Annotated[float, Field(ge=0, lt=1)] = 0.7
    """Ratios at or below it are outside."""
    high: Annotated[float, Field(gt=1, allow_inf_nan=False)] = 6.0
    """Ratios at or above it are outside. SAO: 0.7 and 6 for reasoning, 0.2 and 4 for code."""


class OffPolicySequence(Term):
    name: Literal["off_policy_sequence"]
    limit: PositiveFloat = 0.5
    """Largest mean of log behavior - log policy inside."""


class SecondMomentClip(Term):
    name: Literal["second_moment_clip"]
    limit: PositiveFloat = 0.04
    """Maximum mean squared log-ratio of the tokens that moved away, each at most that of the clip, per
    optimizer step."""


TrustRegion = Annotated[
    OwnFunction | TotalVariation | BinaryKl | Ipo | Kpop | Band | OffPolicySequence | SecondMomentClip,
    OneOf(),
]


class PlainSurrogate(Term):
    name: Literal["reinforce", "ratio", "gspo", "cispo", "gmpo"]


class PpoClip(Term):
    name: Literal["ppo_clip"]
    dual_clip: Annotated[float, Field(gt=1, allow_inf_nan=False)] | None = None
    """Bounds the loss by dual_clip x |advantage| for negative advantages; usually 3. Default: off."""


class Sapo(Term):
    name: Literal["sapo"]
    tau_positive: PositiveFloat = 1.0
    """Steepness for positive advantages: the larger, the sooner a ratio away from 1 teaches less."""
    tau_negative: PositiveFloat = 1.05
    """Steepness for negative advantages."""


Surrogate = Annotated[OwnFunction | PpoClip | PlainSurrogate | Sapo, OneOf("ppo_clip")]


class NoControl(Term):
    name: Literal["none"]


class Covariance(Term):
    share: Annotated[float, Field(gt=0, le=1)] = 2e-4
    """Share of an optimizer step's tokens that are held back, at least one."""


class ClipCov(Covariance):
    name: Literal["clip_cov"]
    low: NonNegativeFloat = 1.0
    """Lower end of the covariances."""
    high: PositiveFloat = 5.0
    """Upper end of the covariances."""


class KlCov(Covariance):
    name: Literal["kl_cov"]
    coefficient: PositiveFloat = 0.1
    """Weight of |log ratio| of the tokens held back (the paper: 1)."""


EntropyControl = Annotated[NoControl | ClipCov | KlCov, OneOf("none")]


class Kl(Group):
    """KL to the reference, usually the base model."""

    coefficient: NonNegativeFloat = 0.0
    """Weight of the KL. 0: off, no reference is loaded."""
    estimator: Literal["k1", "k2", "k3", "k3_plus", "unbiased"] = "k3"
    """KL per token; d is log policy - log reference.
    k1: d.
    k2: d^2 / 2.
    k3: exp(-d) - 1 + d.
    k3_plus: k3's value with k2's gradient (verl).
    unbiased: k3 times the policy's ratio to the behavior policy, with its gradient (DeepSeek-V3.2): for stale
    data."""
    place: Literal["loss", "reward"] = "loss"
    """Where the KL is applied.
    loss: added per token.
    reward: subtracted per token, so that earlier tokens answer for it too; costs one more forward pass.
    It comes off before whitening (reinforce_pp, reinforce_pp_baseline, gdpo, gae), in the baseline too
    (rloo), and otherwise after the group baseline and the batch's std, unscaled."""
    refresh_steps: Count = 0
    """Every n steps of the run the policy becomes the reference, so that the KL bounds each stretch by
    itself (ProRL). 0: the base model stays the reference. Checkpoints then hold the reference too."""
    refresh_resets_optimizer: bool = False
    """The optimizer begins at zero at each refresh (ProRL). The learning rate's schedule does not."""


class EntropyBonus(Group):
    """Bonus for the policy's entropy at each token."""

    coefficient: NonNegativeFloat = 0.0
    """Weight of the bonus; with a target that of the first step. 0: off."""
    target: PositiveFloat | None = None
    """Mean entropy per token, in nats, that the weight of the bonus is led to (Skywork-OR1: 0.2): after each
    step it rises by `step` where the entropy is at most this, and falls above it; above it there is no bonus.
    Where one weight is too small early and too large late. Default: the weight stays."""
    step: PositiveFloat = 0.005
    """Change of the weight per step under a target."""
    max_coefficient: PositiveFloat = 1.0
    """Largest weight under a target."""


class Overlong(Group):
    """Reward that falls linearly within some tokens of the limit."""

    buffer_tokens: Count = 0
    """Tokens before the limit within which the reward falls (0: off)."""
    penalty: PositiveFloat = 1.0
    """Reward lost at the limit."""


RAW_ADVANTAGES = ("reinforce_pp", "batch_mean", "w_reinforce", "gae")
"""Advantages without a group baseline: the whole batch, a constant or the critic is theirs, so that every
group has a gradient."""
WHITENED_ADVANTAGES = ("reinforce_pp", "reinforce_pp_baseline", "gdpo")
BATCH_ADVANTAGES = (*WHITENED_ADVANTAGES, "batch_mean", "gae")
"""Advantages that are not of one group's rewards alone: the batch or the critic moves them."""
SCALED_ADVANTAGES = ("grpo", "pass_at_k_training", "max_rl", *WHITENED_ADVANTAGES, "gae")
"""Advantages with a scale of their own, of the group or the batch."""
TURN_ADVANTAGES = ("grpo", "dr_grpo", "rloo", "remax", "reinforce_pp", "reinforce_pp_baseline")
"""Advantages that a turn can have by itself: linear in rewards, with one scale for a group or a batch."""
CLIP_RANGES: dict[str, tuple[float | None, float]] = {
    "ppo_clip": (0.2, 0.28),
    "cispo": (None, 0.2),
    "gmpo": (round(1 - math.exp(-0.4), 4), round(math.exp(0.4) - 1, 4)),
}
"""(clip_low, clip_high) of a surrogate's paper, for ppo_clip of DAPO's, where they are not (0.2, 0.2)."""
