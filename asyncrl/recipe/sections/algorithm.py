"""The section `algorithm`: the terms of the loss, checked against each other."""

import math
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from asyncrl.recipe.algorithm_terms import (
    CLIP_RANGES,
    RAW_ADVANTAGES,
    SCALED_ADVANTAGES,
    TURN_ADVANTAGES,
    WHITENED_ADVANTAGES,
    Advantage,
    ClipCov,
    EntropyBonus,
    EntropyControl,
    Gae,
    GeometricMean,
    Kl,
    NoControl,
    Overlong,
    PlainAdvantage,
    PpoClip,
    Rejection,
    SequenceMasked,
    Surrogate,
    TokenVeto,
    Truncated,
    TrustRegion,
    Weight,
)
from asyncrl.recipe.sections.section import (
    CHANGEABLE,
    OBJECT,
    Fraction,
    NonNegativeFloat,
    PositiveFloat,
    Section,
)
from asyncrl.recipe.terms import OwnFunction, Term, name_of


class Algorithm(Section):
    """Loss terms; `asyncrl algorithms` prints formula, use and failure of each. Advantage, importance weight,
    rejection, trust region and surrogate may be your own: "package.module:name" or "./file.py:name". Write a
    term as its name, or as a mapping with its name and its numbers: {name: sapo, tau_positive: 1.1}."""

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
    sao: SAO's, asynchronous, one response per prompt and a critic.
    flash_reinforce: FlashREINFORCE's, asynchronous, one response per prompt and no critic.
    a3po: A-3PO's as AReaL sets it, asynchronous, without the proximal forward pass.
    recommended: something to begin with, asynchronous."""
    advantage: Annotated[Advantage, OBJECT] = PlainAdvantage(name="grpo")
    """Reward to advantage.
    grpo: minus group mean, over group std.
    dr_grpo: minus group mean.
    rloo: minus the mean of the group's other rewards.
    remax: minus the reward of a greedy response.
    reinforce_pp: whitened over the batch.
    batch_mean: minus the mean reward of the batch's responses (FlashREINFORCE).
    reinforce_pp_baseline: minus group mean, then whitened over the batch.
    gdpo: each named score of the verdicts minus group mean, over group std; their sum by part_weights,
    whitened over the batch (GDPO).
    opo: minus the length-weighted group mean.
    pass_at_k: what a response adds to the best of k (PKPO).
    pass_at_k_training: best of k with the response, less that of any k, over the latter's std.
    max_rl: minus group mean, over group mean: hard tasks weigh most (MaxRL).
    w_reinforce: positive_scale for a right answer, -1 for a wrong one (W-REINFORCE).
    asym_re: minus group mean, less offset (AsymRE).
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
    least_reward_spread: Annotated[float, Field(ge=0, lt=1)] = 1e-3
    """Rewards of a group that are closer together than this count as equal, so that no normalization turns
    rounding into advantages of +-1: as a share of the largest |reward| in the group, or of 1 if that is
    larger. The same holds for the batch that reinforce_pp, reinforce_pp_baseline, gdpo and gae whiten, or
    divides_by_batch_std. The default is the score of one test in a thousand; rounding is far below. 0: every
    difference counts."""
    proximal: Literal["forward", "interpolated"] = "forward"
    """Policy that ratios are taken against, and that importance weights correct for.
    forward: the one before the batch; several optimizer steps per batch cost one more forward pass for it.
    interpolated: 1/k of the way back from the policy in training to the one that sampled, k the token's
    staleness (A-3PO). No forward pass, and policy ratios differ from 1 at one optimizer step per batch too.
    Tokens of staleness 0 have a ratio of 1. Take it where that pass is expensive and data are stale."""
    importance_weight: Annotated[Weight, OBJECT] = Truncated(name="truncated")
    """Corrects staleness and engine mismatch, by the ratio of proximal to behavior policy.
    none: no correction.
    truncated: token ratio, clamped to [floor, cap].
    sequence_truncated: sequence ratio (product of token ratios), clamped likewise.
    masked: token ratio; 0 outside [mask_low, mask_high].
    sequence_masked: sequence ratio; 0 above cap."""
    mask_low: NonNegativeFloat = 0.5
    """Lower bound of the token ratio for masked and token_range."""
    mask_high: PositiveFloat = 5.0
    """Upper bound of the token ratio for masked and token_range."""
    rejection: Annotated[list[Rejection], OBJECT] = []
    """Filters; a token must pass all of them to enter the loss.
    token_range: drops tokens outside [mask_low, mask_high].
    geometric_mean: drops sequences outside [low, high].
    second_moment: drops the tokens that moved furthest, until limit holds (M2PO).
    token_veto: drops sequences with a token below low.
    sequence_kl: drops sequences whose tokens have a mean binary KL above limit (FlashREINFORCE)."""
    trust_region: Annotated[list[TrustRegion], OBJECT] = []
    """Which tokens the policy in training has moved too far from the policy that sampled them. They have no
    policy loss, but KL and entropy; a token must be inside all. Helps stale data and several optimizer steps
    per batch, in place of a clip.
    dppo_tv: drops a change of probability above limit in the direction of the advantage (DPPO).
    dppo_kl: the same by the binary KL.
    ipo: drops a change of probability above limit in either direction (prime-rl).
    kpop: drops a binary KL above limit, the larger of both directions.
    band: drops ratios that are not strictly between low and high, in either direction (SAO).
    off_policy_sequence: drops responses with a negative advantage that the policy has left by more than
    limit per token (DeepSeek-V3.2).
    second_moment_clip: clips at a range that holds limit (M2PO as its authors' code)."""
    surrogate: Annotated[Surrogate, OBJECT] = PpoClip(name="ppo_clip")
    """Policy loss.
    reinforce: no ratio, no clip.
    ratio: token ratio, not clipped: for trust regions.
    ppo_clip: token ratio, clipped.
    gspo: geometric mean of the sequence's token ratios, clipped.
    cispo: REINFORCE weighted by the clipped token ratio.
    gmpo: geometric mean of the sequence's token ratios, each clipped before.
    sapo: a sigmoid of the token ratio, by tau_positive and tau_negative."""
    clip_low: Annotated[float, Field(gt=0, lt=1)] | None = 0.2
    """Policy ratios of ppo_clip, gspo, cispo and gmpo are clipped below 1 - clip_low; null: not at all.
    Default: null for cispo, 0.3297 (ratio e^-0.4) for gmpo, otherwise 0.2."""
    clip_high: PositiveFloat = 0.28
    """Policy ratios of ppo_clip, gspo, cispo and gmpo are clipped above 1 + clip_high.
    Default: 0.28 for ppo_clip (DAPO), 0.4918 (ratio e^0.4) for gmpo, otherwise 0.2."""
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
    kl: Kl = Kl()
    behavior_kl_coefficient: NonNegativeFloat = 0.0
    """Weight of (log policy - log behavior)^2, also outside a trust region, whose tokens it leads back
    (prime-rl: 1e-3). 0: off."""
    entropy_bonus: EntropyBonus = EntropyBonus()
    entropy_control: EntropyControl = NoControl(name="none")
    """Holds back the few tokens of an optimizer step whose advantage and log-prob vary together the most:
    these take the entropy out of the policy. For runs whose entropy falls before tasks are solved. At one
    optimizer step per batch it costs one more forward pass.
    none: every token teaches.
    clip_cov: a random share of the tokens, from those between low and high, teaches nothing.
    kl_cov: the share of the largest is pulled back by coefficient; needs ratios other than 1."""
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
    overlong: Overlong = Overlong()

    @model_validator(mode="before")
    @classmethod
    def _fill_in_clip_range(cls, raw: Any) -> Any:
        if not isinstance(raw, dict):
            return raw
        low, high = CLIP_RANGES.get(str(name_of(raw.get("surrogate")) or "ppo_clip"), (0.2, 0.2))
        return {"clip_low": low, "clip_high": high, **raw}

    @model_validator(mode="after")
    def _check(self) -> "Algorithm":
        for check in (
            *(_check_ranges, _check_behavior, _check_proximal, _check_entropy_bonus),
            *(_check_credit, _check_kl, _check_scale, _check_ratio_of_one),
        ):
            check(self)
        return self

    def needs_greedy(self) -> bool:
        """Whether each group has one more trajectory, greedy and never trained."""
        return self.advantage.name == "remax"

    def needs_critic(self) -> bool:
        """Whether a value model is trained with the policy."""
        return isinstance(self.advantage, Gae)

    def has_kl_reward(self) -> bool:
        return self.kl.coefficient > 0 and self.kl.place == "reward"

    def is_whitened(self) -> bool:
        """Whether advantages are whitened over the tokens of the batch."""
        advantage = self.advantage
        return advantage.is_whitened if isinstance(advantage, Gae) else advantage.name in WHITENED_ADVANTAGES

    def min_group_size(self) -> int:
        """Smallest number of graded trajectories that gives a group advantages."""
        return 1 if self.advantage.name in RAW_ADVANTAGES or self.needs_greedy() else 2

    def always_teaches(self) -> bool:
        """Whether a group has a gradient even if all its rewards are equal."""
        return self.advantage.name in (*RAW_ADVANTAGES, "asym_re")

    def own_terms(self) -> list[tuple[str, OwnFunction]]:
        """Key and term of each term of the recipe's own."""
        terms = [
            ("advantage", self.advantage),
            ("importance_weight", self.importance_weight),
            *(("rejection", term) for term in self.rejection),
            *(("trust_region", term) for term in self.trust_region),
            ("surrogate", self.surrogate),
        ]
        return [(key, term) for key, term in terms if isinstance(term, OwnFunction)]

    def has_own_loss_terms(self) -> bool:
        """Whether an importance weight, rejection, trust region or surrogate is the user's own."""
        return any(key != "advantage" for key, _ in self.own_terms())


def _ranges(algorithm: Algorithm) -> Iterator[tuple[str, float, str, float]]:
    """(key, least, key, most) of the ratios that are kept, with the keys as an override writes them."""
    yield "mask_low", algorithm.mask_low, "mask_high", algorithm.mask_high
    terms: list[tuple[str, Term]] = [("importance_weight", algorithm.importance_weight)]
    for place, term in [*terms, *((f"rejection.{term.name}", term) for term in algorithm.rejection)]:
        match term:
            case GeometricMean():
                yield f"{place}.low", term.low, f"{place}.high", term.high
            case Truncated():
                yield f"{place}.floor", term.floor, f"{place}.cap", term.cap
            case TokenVeto():
                yield f"{place}.low", term.low, "", math.inf
            case SequenceMasked():
                yield "", 0.0, f"{place}.cap", term.cap


def _check_ranges(algorithm: Algorithm) -> None:
    ranges, control = [*_ranges(algorithm)], algorithm.entropy_control
    if isinstance(control, ClipCov):
        ranges.append(("entropy_control.low", control.low, "entropy_control.high", control.high))
    for low, least, high, most in ranges:
        if low and high and least >= most:
            raise ValueError(
                f"algorithm.{low} is {least} but algorithm.{high} is {most}: the range is empty. Lower "
                f"algorithm.{low} or raise algorithm.{high}."
            )


def _check_behavior(algorithm: Algorithm) -> None:
    """Clips around the behavior policy."""
    if algorithm.clip_around == "behavior" and algorithm.importance_weight.name != "none":
        raise ValueError(
            f"algorithm.clip_around is behavior and algorithm.importance_weight is "
            f"{algorithm.importance_weight.name}: the same ratio would count twice. Set "
            f"algorithm.importance_weight to none, or algorithm.clip_around to proximal."
        )
    if algorithm.clip_around == "behavior" and algorithm.surrogate.name == "reinforce":
        raise ValueError(
            "algorithm.clip_around is behavior but algorithm.surrogate reinforce has no ratio: nothing "
            "would correct for the behavior policy. Set algorithm.clip_around to proximal and "
            "algorithm.importance_weight to truncated, or algorithm.surrogate to cispo."
        )


def _check_proximal(algorithm: Algorithm) -> None:
    if algorithm.proximal == "forward":
        return
    if algorithm.clip_around == "behavior":
        raise ValueError(
            "algorithm.proximal is interpolated but algorithm.clip_around is behavior: no ratio is taken "
            "against a proximal policy. Set algorithm.clip_around to proximal, or remove "
            "algorithm.proximal."
        )
    if algorithm.surrogate.name == "reinforce":
        raise ValueError(
            "algorithm.proximal is interpolated but algorithm.surrogate reinforce has no ratio: the part "
            "of the staleness that importance weights leave to it would go uncorrected. Set "
            "algorithm.surrogate to ppo_clip or cispo, or remove algorithm.proximal."
        )


def _check_entropy_bonus(algorithm: Algorithm) -> None:
    bonus = algorithm.entropy_bonus
    if bonus.target is not None and bonus.coefficient > bonus.max_coefficient:
        raise ValueError(
            f"algorithm.entropy_bonus.coefficient is {bonus.coefficient} but under "
            f"algorithm.entropy_bonus.target it is at most algorithm.entropy_bonus.max_coefficient, "
            f"{bonus.max_coefficient}. Lower the first or raise the last."
        )


def _check_credit(algorithm: Algorithm) -> None:
    if algorithm.credit == "outcome" or algorithm.advantage.name in TURN_ADVANTAGES:
        return
    if algorithm.needs_critic():
        raise ValueError(
            "algorithm.credit is turns but algorithm.advantage is gae, which takes each reward at its "
            "token already. Remove algorithm.credit."
        )
    raise ValueError(
        f"algorithm.credit is turns but algorithm.advantage {algorithm.advantage.name} is defined "
        f"for the rewards of whole trajectories alone. Set algorithm.credit to outcome, or "
        f"algorithm.advantage to one of {', '.join(TURN_ADVANTAGES)}."
    )


def _check_kl(algorithm: Algorithm) -> None:
    if algorithm.has_kl_reward() and algorithm.kl.estimator in ("k3_plus", "unbiased"):
        raise ValueError(
            f"algorithm.kl.estimator is {algorithm.kl.estimator}, which is a gradient, but "
            f"algorithm.kl.place is reward, which takes a value. Set algorithm.kl.estimator to k1, or "
            f"algorithm.kl.place to loss."
        )
    names = {term.name for term in (*algorithm.rejection, *algorithm.trust_region)}
    if {"second_moment", "second_moment_clip"} <= names:
        raise ValueError(
            "algorithm.rejection has second_moment and algorithm.trust_region has second_moment_clip: "
            "both are M2PO, and there is one bound. Remove one of them."
        )


def _check_scale(algorithm: Algorithm) -> None:
    if algorithm.divides_by_batch_std and algorithm.advantage.name in SCALED_ADVANTAGES:
        raise ValueError(
            f"algorithm.divides_by_batch_std is true but algorithm.advantage {algorithm.advantage.name} has "
            f"a scale of its own already. Set algorithm.advantage to one without, such as dr_grpo, or "
            f"set algorithm.divides_by_batch_std to false."
        )
    overlong, cut_off = algorithm.overlong.buffer_tokens, algorithm.cut_off_reward
    key, value = ("overlong.buffer_tokens", overlong) if overlong else ("cut_off_reward", cut_off)
    if algorithm.advantage.name == "gdpo" and value is not None:
        raise ValueError(
            f"algorithm.{key} is {value}, which changes the reward, but algorithm.advantage gdpo takes the "
            f"named scores of verdicts. Remove algorithm.{key}, and let a part of the verifier judge the "
            f"length."
        )
    if algorithm.advantage.name == "max_rl" and (overlong or (cut_off or 0) < 0):
        raise ValueError(
            f"algorithm.{key} is {value}, which makes rewards negative, but algorithm.advantage max_rl "
            f"divides by their mean, which must be above 0. Remove algorithm.{key}, or set "
            f"algorithm.advantage to another one, such as grpo."
        )


def _check_ratio_of_one(algorithm: Algorithm) -> None:
    """A ratio of 1 is that of every token of the current policy, which a range must not exclude."""
    for low, least, high, most in _ranges(algorithm):
        for key, value, is_excluded, side, verb in (
            (low, least, least > 1, "at most", "Lower"),
            (high, most, most < 1, "at least", "Raise"),
        ):
            if is_excluded:
                raise ValueError(
                    f"algorithm.{key} is {value}, which excludes a ratio of 1: that of every token of the "
                    f"current policy. Expected {side} 1. {verb} algorithm.{key}."
                )
