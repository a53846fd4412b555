"""The keys of the section `algorithm`: the terms of the loss. `recipe/algorithm.py` checks them together."""

import math
from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from asyncrl.recipe.markers import CHANGEABLE, OBJECT
from asyncrl.recipe.sections.section import Count, Fraction, NonNegativeFloat, PositiveFloat, Section


def _one_of(*names: str) -> Callable[[str], str]:
    """A validator that accepts one of `names`, or "package.module:name"."""

    def check(value: str) -> str:
        if value in names or ":" in value:
            return value
        known = ", ".join(f"'{name}'" for name in names)
        raise PydanticCustomError("term", f'Input should be {known} or "package.module:name"')

    return check


ADVANTAGE_NAMES = (
    *("grpo", "dr_grpo", "rloo", "remax", "reinforce_pp", "reinforce_pp_baseline", "opo", "pass_at_k"),
    *("gdpo", "pass_at_k_training", "max_rl", "w_reinforce", "asym_re", "gae"),
)
WEIGHT_NAMES = ("none", "truncated", "sequence_truncated", "masked", "sequence_masked")
REJECTION_NAMES = ("token_range", "geometric_mean", "second_moment", "token_veto")
TRUST_REGION_NAMES = ("dppo_tv", "dppo_kl", "ipo", "kpop", "off_policy_sequence", "second_moment_clip")
SURROGATE_NAMES = ("reinforce", "ratio", "ppo_clip", "gspo", "cispo", "gmpo", "sapo")
RAW_ADVANTAGES = ("reinforce_pp", "w_reinforce", "gae")
"""Advantages without a group baseline: the whole batch, a constant or the critic is theirs, so that every
group has a gradient."""
WHITENED_ADVANTAGES = ("reinforce_pp", "reinforce_pp_baseline", "gdpo")
PASS_AT_K_ADVANTAGES = ("pass_at_k", "pass_at_k_training")
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
AdvantageName = Annotated[str, AfterValidator(_one_of(*ADVANTAGE_NAMES))]
WeightName = Annotated[str, AfterValidator(_one_of(*WEIGHT_NAMES))]
RejectionName = Annotated[str, AfterValidator(_one_of(*REJECTION_NAMES))]
TrustRegionName = Annotated[str, AfterValidator(_one_of(*TRUST_REGION_NAMES))]
SurrogateName = Annotated[str, AfterValidator(_one_of(*SURROGATE_NAMES))]


class AlgorithmKeys(Section):
    """Loss terms; `asyncrl algorithms` prints formula, use and failure of each. Advantage, importance weight,
    rejection, trust region and surrogate may be your own: "package.module:name" or "./file.py:name"."""

    preset: Annotated[str | None, CHANGEABLE] = None
    """Name of a set of keys, here and in other sections, that hold where the recipe does not state them;
    `asyncrl check` shows them.
    grpo: DeepSeekMath's.
    dr_grpo: Dr.GRPO's.
    dapo: DAPO's, with dynamic sampling.
    gspo: GSPO's.
    cispo: MiniMax-M1's.
    reinforce_pp: REINFORCE++'s, with KL in the reward.
    ppo: PPO with a critic, as verl sets it.
    scale_rl: ScaleRL's, asynchronous.
    dppo: DPPO's, by total variation, as verl sets it.
    ipo: prime-rl's, asynchronous.
    sapo: SAPO's.
    m2po: M2PO's, for very stale data.
    vapo: VAPO's, with a critic that trains alone for 50 steps.
    max_rl: MaxRL's, for hard tasks.
    a3po: A-3PO's as AReaL sets it, asynchronous, without the proximal forward pass.
    recommended: something to begin with, asynchronous."""
    advantage: Annotated[AdvantageName, OBJECT] = "grpo"
    """Reward to advantage.
    grpo: minus group mean, over group std.
    dr_grpo: minus group mean.
    rloo: minus the mean of the group's other rewards.
    remax: minus the reward of a greedy response.
    reinforce_pp: whitened over the batch.
    reinforce_pp_baseline: minus group mean, then whitened over the batch.
    gdpo: each named score of the verdicts minus group mean, over group std; their sum by part_weights,
    whitened over the batch (GDPO).
    opo: minus the length-weighted group mean.
    pass_at_k: what a response adds to the best of pass_k (PKPO).
    pass_at_k_training: best of pass_k with the response, less that of any pass_k, over the latter's std.
    max_rl: minus group mean, over group mean: hard tasks weigh most (MaxRL).
    w_reinforce: positive_scale for a right answer, -1 for a wrong one (W-REINFORCE).
    asym_re: minus group mean, less baseline_offset (AsymRE).
    gae: PPO with a critic (section `critic`)."""
    credit: Literal["outcome", "turns"] = "outcome"
    """Use of rewards inside a trajectory: those that environments and verifiers give to turns and spans.
    outcome: they are added to the trajectory's reward.
    turns: each turn has the advantage of what it earned and what came after it, the outcome included.
    gae needs neither: it always takes each of them at its token."""
    divides_by_batch_std: bool = False
    """Divides advantages by their std over the responses of the batch, and subtracts no mean (ScaleRL): one
    scale for all tasks, where grpo has one per group. For advantages without a scale of their own, such as
    dr_grpo and rloo; best with replay.drops_no_signal."""
    part_weights: dict[str, Annotated[float, Field(allow_inf_nan=False)]] = {}
    """Weight of each named score (Verdict.scores, such as the parts of the verifier weighted) in gdpo; 1 for
    those not named, 0 leaves one out. `credits` are the rewards of turns and spans."""
    pass_k: Annotated[int, Field(ge=2)] = 4
    """k of pass_at_k and pass_at_k_training. At most rollout.samples_per_group; for pass_at_k_training below
    it, since the whole group is one subset, which has no std."""
    positive_scale: Fraction = 0.1
    """Weight of right answers under w_reinforce, where wrong ones have 1. 0: learns from wrong ones alone."""
    baseline_offset: Annotated[float, Field(lt=0, allow_inf_nan=False)] = -0.1
    """Moves the baseline of asym_re below the group mean: right answers weigh more than wrong ones."""
    least_reward_spread: Annotated[float, Field(ge=0, lt=1)] = 1e-3
    """Rewards of a group that are closer together than this count as equal, so that no normalization turns
    rounding into advantages of +-1: as a share of the largest |reward| in the group, or of 1 if that is
    larger. The same holds for the batch that reinforce_pp, reinforce_pp_baseline, gdpo and gae whiten, or
    divides_by_batch_std. The default is the score of one test in a thousand; rounding is far below. 0: every
    difference counts."""
    gae_lambda: Fraction = 1.0
    """Lambda of gae. 1: Monte Carlo, no bias from the critic. 0: one-step TD."""
    gae_length_alpha: PositiveFloat | None = None
    """Lambda of gae for a response of l tokens: 1 - 1 / (gae_length_alpha l), 0 for short ones, in the place
    of gae_lambda, which stays the critic's (VAPO: 0.05). For responses of very different lengths."""
    gae_gamma: Fraction = 1.0
    """Discount per token of gae."""
    gae_is_whitened: bool = True
    """Whitens gae's advantages over the tokens of the batch."""
    proximal: Literal["forward", "interpolated"] = "forward"
    """Policy that ratios are taken against, and that importance weights correct for.
    forward: the one before the batch; several optimizer steps per batch cost one more forward pass for it.
    interpolated: 1/k of the way back from the policy in training to the one that sampled, k the token's
    staleness (A-3PO). No forward pass, and policy ratios differ from 1 at one optimizer step per batch too.
    Tokens of staleness 0 have a ratio of 1. Take it where that pass is expensive and data are stale."""
    importance_weight: Annotated[WeightName, OBJECT] = "truncated"
    """Corrects staleness and engine mismatch, by the ratio of proximal to behavior policy.
    none: no correction.
    truncated: token ratio, clamped to [importance_floor, importance_cap].
    sequence_truncated: sequence ratio (product of token ratios), clamped likewise.
    masked: token ratio; 0 outside [mask_low, mask_high].
    sequence_masked: sequence ratio; 0 above importance_cap."""
    importance_cap: PositiveFloat = 2.0
    """Upper bound of truncated, sequence_truncated and sequence_masked."""
    importance_floor: NonNegativeFloat = 0.0
    """Lower bound of truncated and sequence_truncated (0: none)."""
    mask_low: NonNegativeFloat = 0.5
    """Lower bound of the token ratio for masked and token_range."""
    mask_high: PositiveFloat = 5.0
    """Upper bound of the token ratio for masked and token_range."""
    rejection: Annotated[list[RejectionName], OBJECT] = []
    """Filters; a token must pass all of them to enter the loss.
    token_range: drops tokens outside [mask_low, mask_high].
    geometric_mean: drops sequences outside [geometric_low, geometric_high].
    second_moment: drops the tokens that moved furthest, until second_moment_limit holds (M2PO).
    token_veto: drops sequences with a token below veto_low."""
    geometric_low: NonNegativeFloat = 0.99
    """Lower bound of a sequence's geometric mean ratio."""
    geometric_high: PositiveFloat = 1.01
    """Upper bound of a sequence's geometric mean ratio. Stale data needs a wider range."""
    second_moment_limit: PositiveFloat = 0.04
    """Maximum mean squared log-ratio of the tokens that moved away, per optimizer step; of second_moment and
    second_moment_clip."""
    veto_low: PositiveFloat = 1e-4
    """Lowest token ratio that token_veto tolerates."""
    trust_region: Annotated[list[TrustRegionName], OBJECT] = []
    """Which tokens the policy in training has moved too far from the policy that sampled them. They have no
    policy loss, but KL and entropy; a token must be inside all. Helps stale data and several optimizer steps
    per batch, in place of a clip.
    dppo_tv: drops a change of probability above tv_limit in the direction of the advantage (DPPO).
    dppo_kl: the same by the binary KL, above kl_limit.
    ipo: drops a change of probability above probability_limit in either direction (prime-rl).
    kpop: drops a binary KL above kpop_limit, the larger of both directions.
    off_policy_sequence: drops responses with a negative advantage that the policy has left by more than
    sequence_limit per token (DeepSeek-V3.2).
    second_moment_clip: clips at a range that holds second_moment_limit (M2PO as its authors' code)."""
    tv_limit: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """Largest change of probability inside dppo_tv."""
    kl_limit: PositiveFloat = 0.05
    """Largest binary KL inside dppo_kl."""
    probability_limit: Annotated[float, Field(gt=0, lt=1)] = 0.3
    """Largest change of probability inside ipo."""
    kpop_limit: PositiveFloat = 0.1
    """Largest binary KL inside kpop."""
    sequence_limit: PositiveFloat = 0.5
    """Largest mean of log behavior - log policy inside off_policy_sequence."""
    surrogate: Annotated[SurrogateName, OBJECT] = "ppo_clip"
    """Policy loss.
    reinforce: no ratio, no clip.
    ratio: token ratio, not clipped: for trust regions.
    ppo_clip: token ratio, clipped.
    gspo: geometric mean of the sequence's token ratios, clipped.
    cispo: REINFORCE weighted by the clipped token ratio.
    gmpo: geometric mean of the sequence's token ratios, each clipped before.
    sapo: a sigmoid of the token ratio, by sapo_tau_positive and sapo_tau_negative."""
    sapo_tau_positive: PositiveFloat = 1.0
    """Steepness of sapo for positive advantages: the larger, the sooner a ratio away from 1 teaches less."""
    sapo_tau_negative: PositiveFloat = 1.05
    """Steepness of sapo for negative advantages."""
    clip_low: Annotated[float, Field(gt=0, lt=1)] | None = 0.2
    """Policy ratios are clipped below 1 - clip_low; null: not at all.
    Default: null for cispo, 0.3297 (ratio e^-0.4) for gmpo, otherwise 0.2."""
    clip_high: PositiveFloat = 0.28
    """Policy ratios are clipped above 1 + clip_high.
    Default: 0.28 for ppo_clip (DAPO), 0.4918 (ratio e^0.4) for gmpo, otherwise 0.2."""
    dual_clip: Annotated[float, Field(gt=1, allow_inf_nan=False)] | None = None
    """Bounds ppo_clip's loss by dual_clip x |advantage| for negative advantages; usually 3. Default: off."""
    clip_around: Literal["proximal", "behavior"] = "proximal"
    """Denominator of policy ratios.
    proximal: the trainer's policy before the step.
    behavior: the policy that sampled; requires importance_weight none."""
    reduction: Literal["token_mean", "dr_grpo_constant", "sequence_mean", "prompt_mean"] = "token_mean"
    """Reduction of the loss per token to one number.
    token_mean: mean over all response tokens of the batch.
    dr_grpo_constant: sum / (sequences x max_new_tokens).
    sequence_mean: mean over sequences of their token means.
    prompt_mean: mean over prompts of the token means of all their responses (ScaleRL)."""
    kl_coefficient: NonNegativeFloat = 0.0
    """Weight of the KL to the reference, usually the base model. 0: off, no reference is loaded."""
    kl_estimator: Literal["k1", "k2", "k3", "k3_plus", "unbiased"] = "k3"
    """KL per token; d is log policy - log reference.
    k1: d.
    k2: d^2 / 2.
    k3: exp(-d) - 1 + d.
    k3_plus: k3's value with k2's gradient (verl).
    unbiased: k3 times the policy's ratio to the behavior policy, with its gradient (DeepSeek-V3.2): for stale
    data."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Where the KL is applied.
    loss: added per token.
    reward: subtracted per token, so that earlier tokens answer for it too; costs one more forward pass.
    It comes off before whitening (reinforce_pp, reinforce_pp_baseline, gdpo, gae), in the baseline too
    (rloo), and otherwise after the group baseline and the batch's std, unscaled."""
    behavior_kl_coefficient: NonNegativeFloat = 0.0
    """Weight of (log policy - log behavior)^2, also outside a trust region, whose tokens it leads back
    (prime-rl: 1e-3). 0: off."""
    reference_refresh_steps: Count = 0
    """Every n steps of the run the policy becomes the reference, so that the KL bounds each stretch by
    itself (ProRL). 0: the base model stays the reference. Checkpoints then hold the reference too."""
    refresh_resets_optimizer: bool = False
    """The optimizer begins at zero at each refresh (ProRL). The learning rate's schedule does not."""
    entropy_coefficient: NonNegativeFloat = 0.0
    """Weight of the entropy bonus; with entropy_target that of the first step."""
    entropy_target: PositiveFloat | None = None
    """Mean entropy per token, in nats, that the weight of the bonus is led to (Skywork-OR1: 0.2): after each
    step it rises by entropy_step where the entropy is at most this, and falls above it; above it there is no
    bonus. Where one weight is too small early and too large late. Default: entropy_coefficient stays."""
    entropy_step: PositiveFloat = 0.005
    """Change of the bonus's weight per step under entropy_target."""
    max_entropy_coefficient: PositiveFloat = 1.0
    """Largest weight of the bonus under entropy_target."""
    entropy_control: Literal["none", "clip_cov", "kl_cov"] = "none"
    """Holds back the few tokens of an optimizer step whose advantage and log-prob vary together the most:
    these take the entropy out of the policy. For runs whose entropy falls before tasks are solved. At one
    optimizer step per batch it costs one more forward pass.
    none: every token teaches.
    clip_cov: a random covariance_share of the tokens, from those between clip_cov_low and clip_cov_high,
    teaches nothing.
    kl_cov: the covariance_share of the largest is pulled back by kl_cov_coefficient; needs ratios other
    than 1."""
    covariance_share: Annotated[float, Field(gt=0, le=1)] = 2e-4
    """Share of an optimizer step's tokens that entropy_control holds back, at least one."""
    clip_cov_low: NonNegativeFloat = 1.0
    """Lower end of the covariances of clip_cov."""
    clip_cov_high: PositiveFloat = 5.0
    """Upper end of the covariances of clip_cov."""
    kl_cov_coefficient: PositiveFloat = 0.1
    """Weight of |log ratio| of the tokens of kl_cov (the paper: 1)."""
    probability_damping: Fraction = 0.0
    """Weight a of a token's probability p in its advantage, A (a p + 1 - a): unlikely tokens teach less.
    Usually 0.2, where they have most of the gradient (columns gradient_share_*). 0: off."""
    top_entropy_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of an optimizer step's tokens, those of the highest entropy, that the policy loss is on. The
    paper has 0.2, for long reasoning of large models. Below 1 it costs one more forward pass per optimizer
    step. KL, entropy bonus and the loss's denominator stay those of all tokens."""
    nll_coefficient: NonNegativeFloat = 0.0
    """Weight of the negative log-likelihood of correct responses, a mean over their tokens (VAPO: 0.1): they
    are imitated besides. For tasks that are rarely solved. 0: off."""
    routing_replay: Literal["none", "rollout", "proximal"] = "none"
    """Experts that a mixture of experts takes in training; their gates are always those of its router now, so
    that it learns.
    none: those that its router chooses now.
    rollout: for each token those that the server took, prompts and observations included (R3). In 16 bits a
    router's near ties fall otherwise in the two engines, which is much of their mismatch. Journals grow by a
    byte per layer and expert of each token; servers of others need --enable-return-routed-experts.
    proximal: those of the policy before the batch, in its second and later optimizer steps (R2). Servers say
    nothing."""
    cut_off_reward: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """Reward of a response that was cut off, whatever it says. Default: that of its verdict."""
    masks_cut_off: bool = False
    """Leaves responses that were cut off out of the loss, also out of its denominator (overlong filtering of
    DAPO, TRL and NeMo-RL); their rewards stay in the baseline of their group. For limits that cut off what
    might have become right. Nothing then teaches brevity: watch the metric masked_cut_off_share."""
    overlong_buffer_tokens: Count = 0
    """Reward falls linearly within this many tokens of the limit (0: off)."""
    overlong_penalty: PositiveFloat = 1.0
    """Reward lost at the limit."""

    def needs_greedy(self) -> bool:
        """Whether each group has one more trajectory, greedy and never trained."""
        return self.advantage == "remax"

    def needs_critic(self) -> bool:
        """Whether a value model is trained with the policy."""
        return self.advantage == "gae"

    def has_kl_reward(self) -> bool:
        return self.kl_coefficient > 0 and self.kl_in == "reward"

    def is_whitened(self) -> bool:
        """Whether advantages are whitened over the tokens of the batch."""
        return self.gae_is_whitened if self.needs_critic() else self.advantage in WHITENED_ADVANTAGES

    def min_group_size(self) -> int:
        """Smallest number of graded trajectories that gives a group advantages."""
        return 1 if self.advantage in RAW_ADVANTAGES or self.needs_greedy() else 2

    def always_teaches(self) -> bool:
        """Whether a group has a gradient even if all its rewards are equal."""
        return self.advantage in (*RAW_ADVANTAGES, "asym_re")

    def has_own_loss_terms(self) -> bool:
        """Whether an importance weight, rejection, trust region or surrogate is the user's own."""
        names = (self.importance_weight, self.surrogate, *self.rejection, *self.trust_region)
        return any(":" in name for name in names)
