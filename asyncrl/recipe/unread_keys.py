"""Keys that a recipe sets though nothing reads them. They are refused, with what would read them.

Numbers of a term stand with it: one of another term is refused where it stands, by the same sentence.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from asyncrl.recipe.algorithm_terms import CLIP_RANGES
from asyncrl.recipe.presets import PRESETS
from asyncrl.recipe.sections.section import value_at
from asyncrl.system.words import as_written

if TYPE_CHECKING:
    from asyncrl.recipe.recipe import Recipe

CLIPPED_SURROGATES = ("ppo_clip", "gspo", "cispo", "gmpo")


class Use(NamedTuple):
    """Keys, and what reads them."""

    keys: tuple[str, ...]
    """Dotted; a section is all of its keys."""
    is_on: Callable[["Recipe"], bool]
    switch: str
    """Keys and values that turn it on, behind the word "set"."""


USES = (
    Use(
        ("algorithm.mask_low", "algorithm.mask_high"),
        lambda recipe: (
            recipe.algorithm.importance_weight.name == "masked"
            or any(term.name == "token_range" for term in recipe.algorithm.rejection)
        ),
        "algorithm.importance_weight to masked, or algorithm.rejection to [token_range]",
    ),
    Use(
        ("algorithm.clip_low", "algorithm.clip_high"),
        lambda recipe: recipe.algorithm.surrogate.name in CLIPPED_SURROGATES,
        f"algorithm.surrogate to one of {', '.join(CLIPPED_SURROGATES)}",
    ),
    Use(
        ("algorithm.kl.estimator", "algorithm.kl.place", "algorithm.kl.refresh_steps"),
        lambda recipe: recipe.algorithm.kl.coefficient > 0,
        "algorithm.kl.coefficient above 0",
    ),
    Use(
        ("algorithm.kl.refresh_resets_optimizer",),
        lambda recipe: recipe.algorithm.kl.refresh_steps > 0,
        "algorithm.kl.refresh_steps to 1 or more",
    ),
    Use(
        ("algorithm.entropy_bonus.step", "algorithm.entropy_bonus.max_coefficient"),
        lambda recipe: recipe.algorithm.entropy_bonus.target is not None,
        "algorithm.entropy_bonus.target",
    ),
    Use(
        ("algorithm.overlong.penalty",),
        lambda recipe: recipe.algorithm.overlong.buffer_tokens > 0,
        "algorithm.overlong.buffer_tokens above 0",
    ),
    Use(("critic",), lambda recipe: recipe.algorithm.needs_critic(), "algorithm.advantage to gae"),
    Use(
        ("trainer.initial_loss_scale", "trainer.loss_scale_growth_steps"),
        lambda recipe: recipe.model.dtype == "float16",
        "model.dtype to float16, whose losses are scaled",
    ),
)
"""Keys that not every run reads, apart from the numbers of terms."""


def unread_keys(recipe: "Recipe") -> Iterator[tuple[str, Any, Use]]:
    """(key, value, use) of each key that says something else than default and preset, though nothing reads
    it."""
    preset = PRESETS[recipe.algorithm.preset].settings if recipe.algorithm.preset else {}
    for use in USES:
        if not use.is_on(recipe):
            for key in use.keys:
                yield from _stated(recipe, key, use, preset)


def check_unread(recipe: "Recipe") -> None:
    for key, value, use in unread_keys(recipe):
        raise ValueError(sentence(key, value, use.switch))


def sentence(key: str, value: Any, switch: str) -> str:
    return f"{key} is {as_written(value)}, but nothing reads it: set {switch}, or remove it."


def _stated(recipe: "Recipe", key: str, use: Use, preset: Any) -> Iterator[tuple[str, Any, Use]]:
    parent, _, name = key.rpartition(".")
    section = value_at(recipe, parent) if parent else recipe
    value, field = getattr(section, name), type(section).model_fields[name]
    if key == name:
        for inner in type(value).model_fields:
            yield from _stated(recipe, f"{key}.{inner}", use, preset)
        return
    default = field.default
    if name in ("clip_low", "clip_high"):
        low, high = CLIP_RANGES.get(recipe.algorithm.surrogate.name, (0.2, 0.2))
        default = low if name == "clip_low" else high
    # A preset states a group of keys as a mapping.
    of_preset = preset.get(key, preset.get(parent, {}).get(name, default))
    if value not in (default, of_preset):
        yield key, value, use
