"""What `asyncrl check` says about valid recipes that do less, or more, than they seem to."""

from asyncrl.recipe import Recipe


def notes(recipe: Recipe) -> list[str]:
    """One or two sentences each."""
    return [
        *_clip_notes(recipe),
        *_length_notes(recipe),
        *_critic_notes(recipe),
    ]


def _clip_notes(recipe: Recipe) -> list[str]:
    algorithm, steps = recipe.algorithm, recipe.trainer.optimizer_steps_per_batch
    has_clip = algorithm.surrogate in ("ppo_clip", "gspo", "cispo", "gmpo")
    if not has_clip or steps > 1 or algorithm.clip_around == "behavior":
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
    if not recipe.algorithm.needs_critic():
        return []
    return [
        f"A response that is cut off at rollout.max_new_tokens ({recipe.rollout.max_new_tokens}) counts as "
        f"ended for the critic: no value is expected after the cut. "
        f"Raise rollout.max_new_tokens if many are cut off."
    ]
