"""Keys of the sections `algorithm` and `critic` that a recipe sets though what reads them is off."""

from collections.abc import Callable
from dataclasses import dataclass

from asyncrl.recipe.recipe import Recipe
from asyncrl.recipe.sections.algorithm import CLIP_RANGES, PASS_AT_K_ADVANTAGES, AlgorithmKeys
from asyncrl.recipe.sections.critic import Critic

CLIPPED_SURROGATES = ("ppo_clip", "gspo", "cispo", "gmpo")
BOUNDED_WEIGHTS = ("truncated", "sequence_truncated", "sequence_masked")


@dataclass(frozen=True, slots=True)
class Use:
    """Keys, and what reads them."""

    keys: tuple[str, ...]
    is_on: Callable[[AlgorithmKeys], bool]
    switch: str
    """Keys and values that turn it on, behind the words "set algorithm."."""


def _advantage(*names: str) -> Callable[[AlgorithmKeys], bool]:
    return lambda algorithm: algorithm.advantage in names


def _surrogate(*names: str) -> Callable[[AlgorithmKeys], bool]:
    return lambda algorithm: algorithm.surrogate in names


def _weight_or_rejection(weights: tuple[str, ...], rejection: str) -> Callable[[AlgorithmKeys], bool]:
    return lambda algorithm: algorithm.importance_weight in weights or rejection in algorithm.rejection


def _region(name: str) -> Callable[[AlgorithmKeys], bool]:
    return lambda algorithm: name in algorithm.trust_region


USES: tuple[Use, ...] = (
    Use(("part_weights",), _advantage("gdpo"), "advantage to gdpo"),
    Use(("pass_k",), _advantage(*PASS_AT_K_ADVANTAGES), "advantage to pass_at_k or pass_at_k_training"),
    Use(("positive_scale",), _advantage("w_reinforce"), "advantage to w_reinforce"),
    Use(("baseline_offset",), _advantage("asym_re"), "advantage to asym_re"),
    Use(
        ("gae_lambda", "gae_length_alpha", "gae_gamma", "gae_is_whitened"),
        _advantage("gae"),
        "advantage to gae",
    ),
    Use(
        ("importance_cap",),
        _weight_or_rejection(BOUNDED_WEIGHTS, ""),
        "importance_weight to truncated, sequence_truncated or sequence_masked",
    ),
    Use(
        ("mask_low", "mask_high"),
        _weight_or_rejection(("masked",), "token_range"),
        "importance_weight to masked, or algorithm.rejection to [token_range]",
    ),
    Use(
        ("geometric_low", "geometric_high"),
        _weight_or_rejection((), "geometric_mean"),
        "rejection to [geometric_mean]",
    ),
    Use(
        ("second_moment_limit",),
        lambda algorithm: (
            "second_moment" in algorithm.rejection or "second_moment_clip" in algorithm.trust_region
        ),
        "rejection to [second_moment], or algorithm.trust_region to [second_moment_clip]",
    ),
    Use(("veto_low",), _weight_or_rejection((), "token_veto"), "rejection to [token_veto]"),
    Use(("tv_limit",), _region("dppo_tv"), "trust_region to [dppo_tv]"),
    Use(("kl_limit",), _region("dppo_kl"), "trust_region to [dppo_kl]"),
    Use(("probability_limit",), _region("ipo"), "trust_region to [ipo]"),
    Use(("kpop_limit",), _region("kpop"), "trust_region to [kpop]"),
    Use(("sequence_limit",), _region("off_policy_sequence"), "trust_region to [off_policy_sequence]"),
    Use(("sapo_tau_positive", "sapo_tau_negative"), _surrogate("sapo"), "surrogate to sapo"),
    Use(
        ("clip_low", "clip_high"),
        _surrogate(*CLIPPED_SURROGATES),
        f"surrogate to one of {', '.join(CLIPPED_SURROGATES)}",
    ),
    Use(("kl_estimator", "kl_in"), lambda algorithm: algorithm.kl_coefficient > 0, "kl_coefficient above 0"),
    Use(
        ("overlong_penalty",),
        lambda algorithm: algorithm.overlong_buffer_tokens > 0,
        "overlong_buffer_tokens above 0",
    ),
)
"""Each key of `algorithm` that some term alone reads, but for those that recipe/algorithm.py refuses where
their term is off."""


def unused_keys(recipe: Recipe) -> dict[str, str]:
    """The keys, dotted, that differ from their default though nothing reads them, and what would. A term of
    the user's own may read every key of `algorithm`."""
    algorithm = recipe.algorithm
    if ":" in algorithm.advantage or algorithm.has_own_loss_terms():
        return {}
    found = {
        f"algorithm.{key}": f"algorithm.{use.switch}"
        for use in USES
        if not use.is_on(algorithm)
        for key in use.keys
        if getattr(algorithm, key) != _default(algorithm, key)
    }
    if not algorithm.needs_critic():
        for key, field in Critic.model_fields.items():
            if getattr(recipe.critic, key) != field.default:
                found[f"critic.{key}"] = "algorithm.advantage to gae"
    return found


def _default(algorithm: AlgorithmKeys, key: str) -> object:
    """The value that the key has where the recipe does not state it."""
    if key in ("clip_low", "clip_high"):
        low, high = CLIP_RANGES.get(algorithm.surrogate, (0.2, 0.2))
        return low if key == "clip_low" else high
    return AlgorithmKeys.model_fields[key].default
