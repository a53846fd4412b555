"""Notes of `asyncrl check` on valid recipes that do less, or more, than they seem to."""

from typing import Any

from asyncrl.recipe import Recipe
from asyncrl.recipe.markers import plain_at
from asyncrl.recipe.presets import PRESETS
from asyncrl.recipe.terms import agrees
from asyncrl.recipe.unread_keys import CLIPPED_SURROGATES
from asyncrl.system.words import as_written


def notes(recipe: Recipe) -> list[str]:
    """One or two sentences each; all are about sampling, rewards and their losses."""
    if recipe.learns_from_rows():
        return []
    return [
        *_clip_notes(recipe),
        *_length_notes(recipe),
        *_critic_notes(recipe),
        *_masking_notes(recipe),
        *_repetition_notes(recipe),
        *_divergence_notes(recipe),
        *_wait_notes(recipe),
    ]


def preset_in_short(recipe: Recipe, name: str) -> str:
    """The keys that a preset has set, and those that the recipe states otherwise."""
    keys = PRESETS[name].keys(recipe.rollout.max_new_tokens)
    there = {key: plain_at(recipe, key) for key in keys}
    own = {key: there[key] for key, value in keys.items() if not agrees(value, there[key])}
    words = f"{name} ({PRESETS[name].source}): {_listed({key: keys[key] for key in keys if key not in own})}"
    return f"{words}; stated otherwise: {_listed(own)}" if own else words


def _listed(keys: dict[str, Any]) -> str:
    return ", ".join(f"{key} {as_written(value)}" for key, value in keys.items())


def _clip_notes(recipe: Recipe) -> list[str]:
    algorithm, steps = recipe.algorithm, recipe.trainer.optimizer_steps_per_batch
    has_clip = algorithm.surrogate.name in CLIPPED_SURROGATES
    has_ratios = algorithm.clip_around == "behavior" or algorithm.proximal == "interpolated"
    if not has_clip or steps > 1 or has_ratios:
        return []
    return [
        "With one optimizer step per batch and algorithm.clip_around proximal, every policy ratio is 1: "
        "clip_low, clip_high and dual_clip do nothing. For a clip that binds, set "
        "trainer.optimizer_steps_per_batch to 2 or more, or algorithm.clip_around to behavior (with "
        "algorithm.importance_weight none)."
    ]


def _length_notes(recipe: Recipe) -> list[str]:
    limit = recipe.rollout.abort_staleness
    if limit is None:
        return []
    return [
        f"rollout.abort_staleness {limit} drops the groups that take longest, and so the longest responses: "
        f"trained responses are shorter than sampled ones (metric: length_bias). rollout.mask_staleness "
        f"masks single stale tokens instead."
    ]


def _critic_notes(recipe: Recipe) -> list[str]:
    if not recipe.algorithm.needs_critic() or recipe.critic.cut_off == "continued":
        return []
    return [
        f"A response that is cut off at rollout.max_new_tokens ({recipe.rollout.max_new_tokens}) counts as "
        f"ended for the critic: no value is expected after the cut. If many are cut off, raise "
        f"rollout.max_new_tokens, or set critic.cut_off to continued."
    ]


def _masking_notes(recipe: Recipe) -> list[str]:
    limit, most = recipe.rollout.mask_staleness, recipe.rollout.max_staleness
    if limit is None:
        return []
    return [
        f"rollout.mask_staleness {limit} is below rollout.max_staleness {most}: where servers are faster "
        f"than the trainer, most tokens are trained at a staleness near {most}, so steps may lose most of "
        f"their tokens or all (alarms.left_out_share). What is left are the last tokens of the longest "
        f"responses, whose advantages no longer have mean 0. Lower rollout.max_staleness to {limit + 1}, or "
        f"correct by algorithm.importance_weight and remove rollout.mask_staleness."
    ]


def _repetition_notes(recipe: Recipe) -> list[str]:
    repeated, most = recipe.replay.repeated_groups_per_batch, recipe.rollout.max_staleness
    if not repeated:
        return []
    return [
        f"replay.repeated_groups_per_batch {repeated}: a group is only repeated while its oldest token is at "
        f"most {most} versions old (rollout.max_staleness). Where servers outpace the trainer, groups "
        f"reach that age before they are trained first, however large it is, and few or none are repeated "
        f"(metric: repeated_groups; alarms.repeated_share). Set rollout.oversampling, such as 1.5, which "
        f"generates no further ahead than the next batch."
    ]


def _divergence_notes(recipe: Recipe) -> list[str]:
    kl = recipe.algorithm.kl
    if not kl.coefficient or kl.place != "loss" or kl.estimator != "k1":
        return []
    return [
        "algorithm.kl.estimator k1 in the loss pulls nowhere: the mean of its gradient over what the policy "
        "samples is zero. Set algorithm.kl.estimator to k2 or k3, or algorithm.kl.place to reward."
    ]


def _wait_notes(recipe: Recipe) -> list[str]:
    turns, most = recipe.turns, recipe.rollout.max_staleness
    if recipe.agent.is_on():
        seconds, what, knobs = recipe.agent.timeout_seconds, "An agent", "agent.timeout_seconds"
    elif turns.is_on():
        seconds = min(turns.max_turns * turns.timeout_seconds, turns.max_tool_seconds)
        what = "Tools and environment"
        knobs = "turns.max_turns times turns.timeout_seconds, at most turns.max_tool_seconds"
    else:
        return []
    waits = (
        f"steps shorter than {seconds / most:.3g} s then wait for it" if most else "every step waits for it"
    )
    return [
        f"{what} may take {seconds:g} s of a trajectory ({knobs}). With rollout.max_staleness {most}, "
        f"{waits}. Raise rollout.max_staleness, lower the limit, or drop late groups with "
        f"rollout.abort_staleness."
    ]
