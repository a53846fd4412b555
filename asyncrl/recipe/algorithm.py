"""The section `algorithm`, with the checks of its terms against each other."""

from typing import Any

from pydantic import model_validator

from asyncrl.recipe.sections.algorithm import (
    CLIP_RANGES,
    SCALED_ADVANTAGES,
    SURROGATE_NAMES,
    TURN_ADVANTAGES,
    AlgorithmKeys,
)


class Algorithm(AlgorithmKeys):
    __doc__ = AlgorithmKeys.__doc__

    @model_validator(mode="before")
    @classmethod
    def _fill_in_clip_range(cls, raw: Any) -> Any:
        if not isinstance(raw, dict):
            return raw
        low, high = CLIP_RANGES.get(str(raw.get("surrogate", "ppo_clip")), (0.2, 0.2))
        return {"clip_low": low, "clip_high": high, **raw}

    @model_validator(mode="after")
    def _check(self) -> "Algorithm":
        for check in _CHECKS:
            check(self)
        return self


def _check_ranges(algorithm: AlgorithmKeys) -> None:
    for kind, low, high in (
        ("mask", algorithm.mask_low, algorithm.mask_high),
        ("geometric", algorithm.geometric_low, algorithm.geometric_high),
        ("clip_cov", algorithm.clip_cov_low, algorithm.clip_cov_high),
    ):
        if low >= high:
            raise ValueError(
                f"algorithm.{kind}_low is {low} but algorithm.{kind}_high is {high}: the range "
                f"is empty. Lower algorithm.{kind}_low or raise algorithm.{kind}_high."
            )


def _check_behavior(algorithm: AlgorithmKeys) -> None:
    """Clips around the behavior policy."""
    if algorithm.clip_around == "behavior" and algorithm.importance_weight != "none":
        raise ValueError(
            f"algorithm.clip_around is behavior and algorithm.importance_weight is "
            f"{algorithm.importance_weight}: the same ratio would count twice. Set "
            f"algorithm.importance_weight to none, or algorithm.clip_around to proximal."
        )
    if algorithm.clip_around == "behavior" and algorithm.surrogate == "reinforce":
        raise ValueError(
            "algorithm.clip_around is behavior but algorithm.surrogate reinforce has no ratio: nothing "
            "would correct for the behavior policy. Set algorithm.clip_around to proximal and "
            "algorithm.importance_weight to truncated, or algorithm.surrogate to cispo."
        )


def _check_bounds(algorithm: AlgorithmKeys) -> None:
    """Bounds that a term does not have."""
    if (
        algorithm.dual_clip is not None
        and algorithm.surrogate in SURROGATE_NAMES
        and algorithm.surrogate != "ppo_clip"
    ):
        raise ValueError(
            f"algorithm.dual_clip is {algorithm.dual_clip} but algorithm.surrogate {algorithm.surrogate} "
            f"has no second bound. Remove algorithm.dual_clip, or set algorithm.surrogate to ppo_clip."
        )
    if algorithm.importance_floor >= algorithm.importance_cap:
        raise ValueError(
            f"algorithm.importance_floor is {algorithm.importance_floor} but algorithm.importance_cap is "
            f"{algorithm.importance_cap}: every weight would be the same. Lower algorithm.importance_floor."
        )
    if algorithm.importance_floor and algorithm.importance_weight in ("none", "masked", "sequence_masked"):
        raise ValueError(
            f"algorithm.importance_floor is {algorithm.importance_floor} but algorithm.importance_weight "
            f"{algorithm.importance_weight} has no lower bound. Remove algorithm.importance_floor, or set "
            f"algorithm.importance_weight to truncated or sequence_truncated."
        )


def _check_proximal(algorithm: AlgorithmKeys) -> None:
    if algorithm.proximal == "forward":
        return
    if algorithm.clip_around == "behavior":
        raise ValueError(
            "algorithm.proximal is interpolated but algorithm.clip_around is behavior: no ratio is taken "
            "against a proximal policy. Set algorithm.clip_around to proximal, or remove "
            "algorithm.proximal."
        )
    if algorithm.surrogate == "reinforce":
        raise ValueError(
            "algorithm.proximal is interpolated but algorithm.surrogate reinforce has no ratio: the part "
            "of the staleness that importance weights leave to it would go uncorrected. Set "
            "algorithm.surrogate to ppo_clip or cispo, or remove algorithm.proximal."
        )


def _check_entropy_target(algorithm: AlgorithmKeys) -> None:
    if (
        algorithm.entropy_target is not None
        and algorithm.entropy_coefficient > algorithm.max_entropy_coefficient
    ):
        raise ValueError(
            f"algorithm.entropy_coefficient is {algorithm.entropy_coefficient} but under "
            f"algorithm.entropy_target it is at most algorithm.max_entropy_coefficient, "
            f"{algorithm.max_entropy_coefficient}. Lower the first or raise the last."
        )


def _check_entropy_keys(algorithm: AlgorithmKeys) -> None:
    """Keys of what is off."""
    control, has_target = algorithm.entropy_control, algorithm.entropy_target is not None
    for key, is_used, switch in (
        ("covariance_share", control != "none", "entropy_control to clip_cov or kl_cov"),
        ("clip_cov_low", control == "clip_cov", "entropy_control to clip_cov"),
        ("clip_cov_high", control == "clip_cov", "entropy_control to clip_cov"),
        ("kl_cov_coefficient", control == "kl_cov", "entropy_control to kl_cov"),
        ("entropy_step", has_target, "entropy_target"),
        ("max_entropy_coefficient", has_target, "entropy_target"),
    ):
        if not is_used and getattr(algorithm, key) != AlgorithmKeys.model_fields[key].default:
            raise ValueError(
                f"algorithm.{key} is {getattr(algorithm, key)} but nothing uses it. Remove it, or set "
                f"algorithm.{switch}."
            )


def _check_credit(algorithm: AlgorithmKeys) -> None:
    if algorithm.credit == "outcome" or algorithm.advantage in TURN_ADVANTAGES:
        return
    if algorithm.needs_critic():
        raise ValueError(
            "algorithm.credit is turns but algorithm.advantage is gae, which takes each reward at its "
            "token already. Remove algorithm.credit."
        )
    raise ValueError(
        f"algorithm.credit is turns but algorithm.advantage {algorithm.advantage} is defined for the rewards "
        f"of whole trajectories alone. Set algorithm.credit to outcome, or algorithm.advantage to one of "
        f"{', '.join(TURN_ADVANTAGES)}."
    )


def _check_kl(algorithm: AlgorithmKeys) -> None:
    if algorithm.has_kl_reward() and algorithm.kl_estimator in ("k3_plus", "unbiased"):
        raise ValueError(
            f"algorithm.kl_estimator is {algorithm.kl_estimator}, which is a gradient, but algorithm.kl_in "
            f"is reward, which takes a value. Set algorithm.kl_estimator to k1, or algorithm.kl_in to loss."
        )
    if "second_moment" in algorithm.rejection and "second_moment_clip" in algorithm.trust_region:
        raise ValueError(
            "algorithm.rejection has second_moment and algorithm.trust_region has second_moment_clip: "
            "both are M2PO, and share algorithm.second_moment_limit. Remove one of them."
        )


def _check_scale(algorithm: AlgorithmKeys) -> None:
    if algorithm.divides_by_batch_std and algorithm.advantage in SCALED_ADVANTAGES:
        raise ValueError(
            f"algorithm.divides_by_batch_std is true but algorithm.advantage {algorithm.advantage} has a "
            f"scale of its own already. Set algorithm.advantage to one without, such as dr_grpo, or "
            f"set algorithm.divides_by_batch_std to false."
        )
    if algorithm.advantage == "gdpo" and (
        algorithm.overlong_buffer_tokens or algorithm.cut_off_reward is not None
    ):
        key = "overlong_buffer_tokens" if algorithm.overlong_buffer_tokens else "cut_off_reward"
        raise ValueError(
            f"algorithm.{key} is {getattr(algorithm, key)}, which changes the reward, but "
            f"algorithm.advantage gdpo takes the named scores of verdicts. Remove algorithm.{key}, and let a "
            f"part of the verifier judge the length."
        )
    if algorithm.advantage == "max_rl" and (
        algorithm.overlong_buffer_tokens or (algorithm.cut_off_reward or 0) < 0
    ):
        key = "overlong_buffer_tokens" if algorithm.overlong_buffer_tokens else "cut_off_reward"
        raise ValueError(
            f"algorithm.{key} is {getattr(algorithm, key)}, which makes rewards negative, but "
            f"algorithm.advantage max_rl divides by their mean, which must be above 0. Remove "
            f"algorithm.{key}, or set algorithm.advantage to another one, such as grpo."
        )


def _check_ratio_of_one(algorithm: AlgorithmKeys) -> None:
    """A ratio of 1 is that of every token of the current policy, which a range must not exclude."""
    for key, low, high in (
        ("mask_low", algorithm.mask_low, 1.0),
        ("mask_high", 1.0, algorithm.mask_high),
        ("geometric_low", algorithm.geometric_low, 1.0),
        ("geometric_high", 1.0, algorithm.geometric_high),
        ("importance_cap", 1.0, algorithm.importance_cap),
        ("importance_floor", algorithm.importance_floor, 1.0),
        ("veto_low", algorithm.veto_low, 1.0),
    ):
        if low > high:
            side, verb = ("at least", "Raise") if low == 1.0 else ("at most", "Lower")
            raise ValueError(
                f"algorithm.{key} is {getattr(algorithm, key)}, which excludes a ratio of 1: that of every "
                f"token of the current policy. Expected {side} 1. {verb} algorithm.{key}."
            )


def _check_refresh(algorithm: AlgorithmKeys) -> None:
    if algorithm.reference_refresh_steps and not algorithm.kl_coefficient:
        raise ValueError(
            f"algorithm.reference_refresh_steps is {algorithm.reference_refresh_steps} but "
            f"algorithm.kl_coefficient is 0: there is no reference. Set algorithm.kl_coefficient, or "
            f"remove algorithm.reference_refresh_steps."
        )
    if algorithm.refresh_resets_optimizer and not algorithm.reference_refresh_steps:
        raise ValueError(
            "algorithm.refresh_resets_optimizer is true but algorithm.reference_refresh_steps is 0: "
            "nothing is refreshed. Set algorithm.reference_refresh_steps to 1 or more."
        )


_CHECKS = (
    _check_ranges,
    _check_behavior,
    _check_bounds,
    _check_proximal,
    _check_entropy_target,
    _check_entropy_keys,
    _check_credit,
    _check_kl,
    _check_scale,
    _check_ratio_of_one,
    _check_refresh,
)
