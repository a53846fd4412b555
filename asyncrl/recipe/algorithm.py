"""The section `algorithm`, with the checks of its terms against each other."""

from collections.abc import Iterator
from typing import Any

from pydantic import model_validator

from asyncrl.recipe.algorithm_terms import ClipCov, GeometricMean, SequenceMasked, TokenVeto, Truncated
from asyncrl.recipe.sections.algorithm import (
    CLIP_RANGES,
    SCALED_ADVANTAGES,
    TURN_ADVANTAGES,
    AlgorithmKeys,
)
from asyncrl.recipe.terms import Term, name_of


class Algorithm(AlgorithmKeys):
    __doc__ = AlgorithmKeys.__doc__

    @model_validator(mode="before")
    @classmethod
    def _fill_in_clip_range(cls, raw: Any) -> Any:
        if not isinstance(raw, dict):
            return raw
        low, high = CLIP_RANGES.get(str(name_of(raw.get("surrogate")) or "ppo_clip"), (0.2, 0.2))
        return {"clip_low": low, "clip_high": high, **raw}

    @model_validator(mode="after")
    def _check(self) -> "Algorithm":
        for check in _CHECKS:
            check(self)
        return self


def _check_ranges(algorithm: AlgorithmKeys) -> None:
    ranges = [("mask_low", algorithm.mask_low, "mask_high", algorithm.mask_high)]
    ranges += [
        (f"{place}.low", term.low, f"{place}.high", term.high)
        for place, term in _terms(algorithm)
        if isinstance(term, (GeometricMean, ClipCov))
    ]
    ranges += [
        (f"{place}.floor", term.floor, f"{place}.cap", term.cap)
        for place, term in _terms(algorithm)
        if isinstance(term, Truncated)
    ]
    for low, least, high, most in ranges:
        if least >= most:
            raise ValueError(
                f"algorithm.{low} is {least} but algorithm.{high} is {most}: the range is empty. Lower "
                f"algorithm.{low} or raise algorithm.{high}."
            )


def _terms(algorithm: AlgorithmKeys) -> Iterator[tuple[str, Term]]:
    """Terms that have bounds, with their places as an override writes them."""
    yield "importance_weight", algorithm.importance_weight
    for term in algorithm.rejection:
        yield f"rejection.{term.name}", term
    yield "entropy_control", algorithm.entropy_control


def _check_behavior(algorithm: AlgorithmKeys) -> None:
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


def _check_proximal(algorithm: AlgorithmKeys) -> None:
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


def _check_entropy_bonus(algorithm: AlgorithmKeys) -> None:
    bonus = algorithm.entropy_bonus
    if bonus.target is not None and bonus.coefficient > bonus.max_coefficient:
        raise ValueError(
            f"algorithm.entropy_bonus.coefficient is {bonus.coefficient} but under "
            f"algorithm.entropy_bonus.target it is at most algorithm.entropy_bonus.max_coefficient, "
            f"{bonus.max_coefficient}. Lower the first or raise the last."
        )


def _check_credit(algorithm: AlgorithmKeys) -> None:
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


def _check_kl(algorithm: AlgorithmKeys) -> None:
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


def _check_scale(algorithm: AlgorithmKeys) -> None:
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


def _check_ratio_of_one(algorithm: AlgorithmKeys) -> None:
    """A ratio of 1 is that of every token of the current policy, which a range must not exclude."""
    bounds = [("mask_low", algorithm.mask_low, 1.0), ("mask_high", 1.0, algorithm.mask_high)]
    for place, term in _terms(algorithm):
        if isinstance(term, (GeometricMean, TokenVeto)):
            bounds.append((f"{place}.low", term.low, 1.0))
        if isinstance(term, GeometricMean):
            bounds.append((f"{place}.high", 1.0, term.high))
        if isinstance(term, (Truncated, SequenceMasked)):
            bounds.append((f"{place}.cap", 1.0, term.cap))
        if isinstance(term, Truncated):
            bounds.append((f"{place}.floor", term.floor, 1.0))
    for key, low, high in bounds:
        if low > high:
            side, verb = ("at least", "Raise") if low == 1.0 else ("at most", "Lower")
            raise ValueError(
                f"algorithm.{key} is {high if low == 1.0 else low}, which excludes a ratio of 1: that of "
                f"every token of the current policy. Expected {side} 1. {verb} algorithm.{key}."
            )


_CHECKS = (
    _check_ranges,
    _check_behavior,
    _check_proximal,
    _check_entropy_bonus,
    _check_credit,
    _check_kl,
    _check_scale,
    _check_ratio_of_one,
)
