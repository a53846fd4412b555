"""The arms of the ablation: which keys of a recipe each of them sets, and which term it is a test of."""

from dataclasses import dataclass
from typing import Any

from asyncrl.recipe.presets import PRESETS

WITHOUT_CLIP = {
    "algorithm.surrogate": "ratio",
    "algorithm.clip_around": "behavior",
    "algorithm.importance_weight": "none",
}
"""Ratios to the policy that sampled, bounded by nothing but the arm's own term."""
TRUNCATED = {"algorithm.importance_weight": {"name": "truncated", "cap": 2.0}}


@dataclass(frozen=True)
class Arm:
    """Keys beyond those of all cells."""

    keys: dict[str, Any]
    term: str | None = None
    """The term of `asyncrl algorithms` that it tests, as "key=name"."""
    reference: str = "truncated"
    """The arm that it is compared with."""


def _one_key(key: str, name: str, **others: Any) -> Arm:
    """The default but for one term, with the keys that the term needs."""
    keys = {f"algorithm.{other}": value for other, value in others.items()}
    return Arm(TRUNCATED | {f"algorithm.{key}": name} | keys, f"algorithm.{key}={name}")


def _single(preset: str, **others: Any) -> Arm:
    """A preset of single rollouts: as many responses as the groups of other arms have in all."""
    keys = PRESETS[preset].keys(max_new_tokens=64) | {"rollout.groups_per_batch": 64}
    return Arm(keys | others)


ARMS: dict[str, Arm] = {
    "none": Arm({"algorithm.importance_weight": "none"}),
    "truncated": Arm(TRUNCATED, "algorithm.importance_weight=truncated", "none"),
    "decoupled": Arm({"algorithm.importance_weight": {"name": "truncated", "cap": 100.0}}, reference="none"),
    "dppo": Arm(
        WITHOUT_CLIP | {"algorithm.trust_region": ["dppo_tv"]}, "algorithm.trust_region=dppo_tv", "none"
    ),
    "masked": Arm({"algorithm.importance_weight": "masked"}, "algorithm.importance_weight=masked"),
    "sequence_masked": Arm(
        {"algorithm.importance_weight": "sequence_masked"}, "algorithm.importance_weight=sequence_masked"
    ),
    "ipo": Arm(WITHOUT_CLIP | {"algorithm.trust_region": ["ipo"]}, "algorithm.trust_region=ipo"),
    # The clip ranges of their papers, where those of all cells are PPO's.
    "gspo": _one_key("surrogate", "gspo", clip_low=3e-4, clip_high=4e-4),
    "cispo": _one_key("surrogate", "cispo", clip_low=None, clip_high=0.2),
    "dr_grpo": _one_key("advantage", "dr_grpo"),
    "max_rl": _one_key("advantage", "max_rl"),
    "sequence_mean": _one_key("reduction", "sequence_mean"),
    "dr_grpo_constant": _one_key("reduction", "dr_grpo_constant"),
    "kl": _one_key("kl.estimator", "k3", **{"kl.coefficient": 0.01}),
    # The critic's rate and warm-up are for a small model and 48 batches: the preset's 5e-6 and 10 are for
    # large models and long runs.
    "sao": _single("sao", **{"critic.learning_rate": 5e-4, "critic.warmup_steps": 4}),
    "flash_reinforce": _single("flash_reinforce"),
}
SINGLE = ("sao", "flash_reinforce")
"""`truncated` is the default: GRPO's advantages, PPO's clip around the policy before the batch, the mean over
tokens, no KL. decoupled, Hilton et al. 2022 (arXiv 2110.00641), puts the cap of its weights out of reach."""
WEIGHTS = ("none", "decoupled", "masked", "sequence_masked")
"""Arms that differ from the default in the weight alone: 1 where data are fresh and engines agree."""
