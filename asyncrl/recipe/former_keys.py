"""Keys as recipes had them before numbers stood with their terms, and where they stand now.

One table refuses them in recipes and overrides, translates files (`asyncrl check --translate`) and the
resolved recipes of runs that were made before.
"""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from asyncrl.recipe.presets import PRESETS
from asyncrl.recipe.recipe import UNREAD_ALLOWED, Recipe
from asyncrl.recipe.terms import (
    Term,
    inner_kind,
    kind_named,
    kinds_in,
    name_of,
    numbers_of,
    owners,
    spread,
)
from asyncrl.recipe.unread_keys import unread_keys
from asyncrl.recipe.yaml_text import read_yaml, with_section
from asyncrl.system.files import read_text, write_whole
from asyncrl.system.words import as_written

NOW: dict[str, tuple[str, ...]] = {
    "algorithm.part_weights": ("algorithm.advantage.part_weights",),
    "algorithm.pass_k": ("algorithm.advantage.k",),
    "algorithm.positive_scale": ("algorithm.advantage.positive_scale",),
    "algorithm.baseline_offset": ("algorithm.advantage.offset",),
    "algorithm.gae_lambda": ("algorithm.advantage.gae_lambda",),
    "algorithm.gae_length_alpha": ("algorithm.advantage.length_alpha",),
    "algorithm.gae_gamma": ("algorithm.advantage.gamma",),
    "algorithm.gae_is_whitened": ("algorithm.advantage.is_whitened",),
    "algorithm.importance_cap": ("algorithm.importance_weight.cap",),
    "algorithm.importance_floor": ("algorithm.importance_weight.floor",),
    "algorithm.geometric_low": ("algorithm.rejection.geometric_mean.low",),
    "algorithm.geometric_high": ("algorithm.rejection.geometric_mean.high",),
    "algorithm.second_moment_limit": (
        "algorithm.rejection.second_moment.limit",
        "algorithm.trust_region.second_moment_clip.limit",
    ),
    "algorithm.veto_low": ("algorithm.rejection.token_veto.low",),
    "algorithm.tv_limit": ("algorithm.trust_region.dppo_tv.limit",),
    "algorithm.kl_limit": ("algorithm.trust_region.dppo_kl.limit",),
    "algorithm.probability_limit": ("algorithm.trust_region.ipo.limit",),
    "algorithm.kpop_limit": ("algorithm.trust_region.kpop.limit",),
    "algorithm.sequence_limit": ("algorithm.trust_region.off_policy_sequence.limit",),
    "algorithm.sapo_tau_positive": ("algorithm.surrogate.tau_positive",),
    "algorithm.sapo_tau_negative": ("algorithm.surrogate.tau_negative",),
    "algorithm.dual_clip": ("algorithm.surrogate.dual_clip",),
    "algorithm.kl_coefficient": ("algorithm.kl.coefficient",),
    "algorithm.kl_estimator": ("algorithm.kl.estimator",),
    "algorithm.kl_in": ("algorithm.kl.place",),
    "algorithm.reference_refresh_steps": ("algorithm.kl.refresh_steps",),
    "algorithm.refresh_resets_optimizer": ("algorithm.kl.refresh_resets_optimizer",),
    "algorithm.entropy_coefficient": ("algorithm.entropy_bonus.coefficient",),
    "algorithm.entropy_target": ("algorithm.entropy_bonus.target",),
    "algorithm.entropy_step": ("algorithm.entropy_bonus.step",),
    "algorithm.max_entropy_coefficient": ("algorithm.entropy_bonus.max_coefficient",),
    "algorithm.covariance_share": ("algorithm.entropy_control.share",),
    "algorithm.clip_cov_low": ("algorithm.entropy_control.low",),
    "algorithm.clip_cov_high": ("algorithm.entropy_control.high",),
    "algorithm.kl_cov_coefficient": ("algorithm.entropy_control.coefficient",),
    "algorithm.overlong_buffer_tokens": ("algorithm.overlong.buffer_tokens",),
    "algorithm.overlong_penalty": ("algorithm.overlong.penalty",),
    "trainer.schedule_steps": ("trainer.learning_rate_schedule.steps",),
    "trainer.decay_steps": ("trainer.learning_rate_schedule.decay_steps",),
    "trainer.min_learning_rate_share": ("trainer.learning_rate_schedule.min_share",),
    "trainer.muon_learning_rate": ("trainer.optimizer.learning_rate",),
    "trainer.muon_momentum": ("trainer.optimizer.momentum",),
}
"""Former key -> the keys now, of the terms that had it; that of a term in a list has its name in it."""
CONSTANTS: dict[str, Any] = {"trainer.muon_newton_schulz_steps": 5}
"""Former key -> the value that every run has now."""
FUNCTION_KEYS = ("advantage", "importance_weight", "rejection", "trust_region", "surrogate")
"""Keys of `algorithm` that may name a function of the recipe's own, which got all of `algorithm`."""


def refusal(key: str, value: Any) -> str | None:
    """The sentence for a former key with this value; None for another key."""
    rewrites = "`asyncrl check --translate RECIPE` rewrites a recipe."
    if key in CONSTANTS:
        fixed = f"but it is {CONSTANTS[key]} in every run now: remove it."
        return f"{key} is {as_written(value)}, {fixed} {rewrites}"
    if key not in NOW:
        return None
    places = " or ".join(
        f"{now} (of {', '.join(names)})" if (names := [*owners(now, Recipe)]) else now for now in NOW[key]
    )
    return f"{key} is {as_written(value)}, but that key is now {places}. {rewrites}"


def as_now(raw: dict[str, Any]) -> dict[str, Any]:
    """Plain data of a run's resolved recipe, perhaps made before, as it would be written now."""
    if not any(_former_in(raw)):
        return raw
    translate(raw)
    return raw


def translate(raw: dict[str, Any]) -> list[str]:
    """Rewrites former keys in `raw`, plain data of a recipe, in place. A line for each change."""
    lines = _functions_with_options(raw)
    for key in [*_former_in(raw)]:
        section, _, name = key.partition(".")
        value = raw[section].pop(name)
        if key in CONSTANTS:
            stays = value == CONSTANTS[key]
            lines.append(f"{key}: removed, {'as' if stays else 'though'} it is {CONSTANTS[key]} in every run")
            continue
        places = [now for now in NOW[key] if _put(raw, now.split("."), value)]
        lines.append(f"{key}: {' and '.join(places) if places else 'removed, nothing read it'}")
    return lines + _without_unread(raw)


def translate_file(path: Path) -> list[str]:
    """Rewrites the recipe or overlay at `path` in place; its comments stay. A line for each change."""
    text = read_text(path)
    raw = read_yaml(text)
    before = copy.deepcopy(raw)
    lines = translate(raw)
    replaced = {old.partition(".")[2]: now[0].split(".")[1] for old, now in NOW.items()}
    for section in before:
        if raw[section] != before[section]:
            text = with_section(text, section, raw[section], replaced)
    if lines:
        write_whole(path, text)
    return lines


def _former_in(raw: dict[str, Any]) -> Iterator[str]:
    for key in (*NOW, *CONSTANTS):
        section, _, name = key.partition(".")
        if isinstance(raw.get(section), dict) and name in raw[section]:
            yield key


def _functions_with_options(raw: dict[str, Any]) -> list[str]:
    """Gives each function of the recipe's own all numbers that the section states, since it may read any."""
    section = raw.get("algorithm")
    lines: list[str] = []
    if not isinstance(section, dict):
        return lines
    options = {key: value for key, value in section.items() if key not in ("preset", *FUNCTION_KEYS)}

    def with_options(key: str, term: Any) -> Any:
        if not isinstance(term, str) or ":" not in term or not options:
            return term
        lines.append(
            f"algorithm.{key} {term}: gets {', '.join(options)} as options; remove what it does not read"
        )
        return {"name": term, "options": dict(options)}

    for key in FUNCTION_KEYS:
        if isinstance(terms := section.get(key), list):
            section[key] = [with_options(key, term) for term in terms]
        elif key in section:
            section[key] = with_options(key, terms)
    return lines


def _put(raw: dict[str, Any], path: list[str], value: Any) -> bool:
    """Whether the number at `path` belongs to what `raw` chooses: then it states it."""
    section, key, *inner, number = path
    stated = raw[section].get(key)
    section_class: Any = Recipe.model_fields[section].annotation
    field = section_class.model_fields[key]
    kinds = kinds_in(field.annotation)
    if not kinds:
        raw[section][key] = {
            **(spread(stated, inner_kind(section_class, key)) or {}),
            number: value,
        }
        return True
    if stated is None:
        preset = PRESETS.get(raw[section].get("preset"))
        stated = None if preset is None else preset.settings.get(f"{section}.{key}")
    if inner:
        terms = list(stated or [])
        place = next((i for i, term in enumerate(terms) if name_of(term) == inner[0]), None)
        if place is None:
            return False
        terms[place] = {**spread(terms[place], Term), number: value}
        raw[section][key] = terms
        return True
    kind = kind_named(name_of(stated) or field.default.name, kinds)
    is_overlay = "model" not in raw and key not in raw[section]
    if not is_overlay and (kind is None or number not in numbers_of(kind)):
        return False
    raw[section][key] = {**(spread(raw[section].get(key), Term) or {}), number: value}
    return True


def _without_unread(raw: dict[str, Any]) -> list[str]:
    """Removes what nothing reads, which recipes could state before."""
    try:
        recipe = Recipe.model_validate(raw, context=UNREAD_ALLOWED)
    except ValidationError:  # refused where it is read
        return []
    lines = []
    for key, _, _ in unread_keys(recipe):
        *parents, name = key.split(".")
        place: Any = raw
        for parent in parents:
            place = place.get(parent) if isinstance(place, dict) else None
        if isinstance(place, dict) and place.pop(name, None) is not None:
            lines.append(f"{key}: removed, nothing read it")
    return lines
