"""Notes of `asyncrl check` on valid recipes that do less, or more, than they seem to."""

from collections.abc import Iterator
from typing import Any

from asyncrl.recipe import Recipe
from asyncrl.recipe.presets import PRESETS
from asyncrl.recipe.sections.section import plain_at
from asyncrl.recipe.terms import agrees
from asyncrl.recipe.unread_keys import CLIPPED_SURROGATES
from asyncrl.system.words import as_written


def notes(recipe: Recipe) -> list[str]:
    """One or two sentences each; all are about sampling, rewards and their losses."""
    return [] if recipe.learns_from_rows() else [*_notes(recipe)]


def preset_in_short(recipe: Recipe, name: str) -> str:
    """The keys that a preset has set, and those that the recipe states otherwise."""
    keys = PRESETS[name].keys(recipe.rollout.max_new_tokens)
    there = {key: plain_at(recipe, key) for key in keys}
    own = {key: there[key] for key, value in keys.items() if not agrees(value, there[key])}
    words = f"{name} ({PRESETS[name].source}): {_listed({key: keys[key] for key in keys if key not in own})}"
    return f"{words}; stated otherwise: {_listed(own)}" if own else words


def _listed(keys: dict[str, Any]) -> str:
    return ", ".join(f"{key} {as_written(value)}" for key, value in keys.items())


def _notes(recipe: Recipe) -> Iterator[str]:
    algorithm, rollout = recipe.algorithm, recipe.rollout
    most = rollout.max_staleness
    has_ratios = algorithm.clip_around == "behavior" or algorithm.proximal == "interpolated"
    is_one_step = recipe.trainer.optimizer_steps_per_batch == 1
    if algorithm.surrogate.name in CLIPPED_SURROGATES and is_one_step and not has_ratios:
        yield (
            "With one optimizer step per batch and algorithm.clip_around proximal, every policy ratio is 1: "
            "clip_low, clip_high and dual_clip do nothing. For a clip that binds, set "
            "trainer.optimizer_steps_per_batch to 2 or more, or algorithm.clip_around to behavior (with "
            "algorithm.importance_weight none)."
        )
    if rollout.abort_staleness is not None:
        yield (
            f"rollout.abort_staleness {rollout.abort_staleness} drops the groups that take longest, and so "
            f"the longest responses: trained responses are shorter than sampled ones (metric: length_bias). "
            f"rollout.mask_staleness masks single stale tokens instead."
        )
    if algorithm.needs_critic() and recipe.critic.cut_off != "continued":
        yield (
            f"A response that is cut off at rollout.max_new_tokens ({rollout.max_new_tokens}) counts as "
            f"ended for the critic: no value is expected after the cut. If many are cut off, raise "
            f"rollout.max_new_tokens, or set critic.cut_off to continued."
        )
    if (limit := rollout.mask_staleness) is not None:
        yield (
            f"rollout.mask_staleness {limit} is below rollout.max_staleness {most}: where servers are faster "
            f"than the trainer, most tokens are trained at a staleness near {most}, so steps may lose most "
            f"of their tokens or all (alarms.left_out_share). What is left are the last tokens of the "
            f"longest responses, whose advantages no longer have mean 0. Lower rollout.max_staleness to "
            f"{limit + 1}, or correct by algorithm.importance_weight and remove rollout.mask_staleness."
        )
    if repeated := recipe.replay.repeated_groups_per_batch:
        yield (
            f"replay.repeated_groups_per_batch {repeated}: a group is only repeated while its oldest token "
            f"is at most {most} versions old (rollout.max_staleness). Where servers outpace the trainer, "
            f"groups reach that age before they are trained first, however large it is, and few or none are "
            f"repeated (metric: repeated_groups). Set rollout.oversampling, such as "
            f"1.5, which generates no further ahead than the next batch."
        )
    kl = algorithm.kl
    if kl.coefficient and kl.place == "loss" and kl.estimator == "k1":
        yield (
            "algorithm.kl.estimator k1 in the loss pulls nowhere: the mean of its gradient over what the "
            "policy samples is zero. Set algorithm.kl.estimator to k2 or k3, or algorithm.kl.place to reward."
        )
    turns = recipe.turns
    if recipe.agent.is_on():
        yield _wait_note(recipe.agent.timeout_seconds, "An agent", "agent.timeout_seconds", most)
    elif turns.is_on():
        seconds = min(turns.max_turns * turns.timeout_seconds, turns.max_tool_seconds)
        knobs = "turns.max_turns times turns.timeout_seconds, at most turns.max_tool_seconds"
        yield _wait_note(seconds, "Tools and environment", knobs, most)


def _wait_note(seconds: float, what: str, knobs: str, most: int) -> str:
    waits = (
        f"steps shorter than {seconds / most:.3g} s then wait for it" if most else "every step waits for it"
    )
    return (
        f"{what} may take {seconds:g} s of a trajectory ({knobs}). With rollout.max_staleness {most}, "
        f"{waits}. Raise rollout.max_staleness, lower the limit, or drop late groups with "
        f"rollout.abort_staleness."
    )
