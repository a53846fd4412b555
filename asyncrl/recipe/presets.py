"""Presets of algorithm.preset: names of published algorithms, each a set of keys as its source sets them.
`asyncrl algorithms NAME` prints one.

presets.yaml has them. A preset fills in the keys that the recipe does not state, before anything is checked;
the resolved recipe states all of them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl.errors import did_you_mean
from asyncrl.recipe.sections.algorithm import Algorithm
from asyncrl.recipe.sections.rollout import Rollout
from asyncrl.recipe.terms import inner_kind, merged, spread
from asyncrl.recipe.yaml_text import read_yaml, write_in_line

OVERLONG = "algorithm.overlong"


@dataclass(frozen=True, slots=True)
class Preset:
    source: str
    settings: Mapping[str, Any]
    """By the dotted keys of a recipe; a term or a group of keys is one value."""
    overlong_share: float = 0.0
    """The buffer of the overlong penalty, as a share of rollout.max_new_tokens."""
    left_out: str = "-"
    """Settings of the source that the preset does not set, and why."""

    def keys(self, max_new_tokens: int) -> dict[str, Any]:
        """All settings, for responses of at most `max_new_tokens`."""
        if not self.overlong_share:
            return dict(self.settings)
        buffer = int(self.overlong_share * max_new_tokens)
        return {**self.settings, OVERLONG: {"buffer_tokens": buffer, **self.settings[OVERLONG]}}


def _read_presets() -> Iterator[tuple[str, Preset]]:
    for name, stated in read_yaml(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")).items():
        sections = stated.pop("keys").items()
        keys = {f"{section}.{key}": value for section, own in sections for key, value in own.items()}
        yield name, Preset(settings=keys, **stated)


PRESETS: Mapping[str, Preset] = dict(_read_presets())


def with_preset(raw: Any) -> Any:
    """Plain data of a recipe, completed by the keys of the preset that it names, if it names one.

    Raises ValueError for a name that is none."""
    algorithm = raw.get("algorithm") if isinstance(raw, dict) else None
    name = algorithm.get("preset") if isinstance(algorithm, dict) else None
    if not isinstance(name, str):
        return raw
    if name not in PRESETS:
        meant = did_you_mean(name, PRESETS, f" Known: {', '.join(PRESETS)}.")
        raise ValueError(f"algorithm.preset is {name!r}, which is no preset.{meant}")
    completed = dict(raw)
    for key, value in PRESETS[name].keys(_max_new_tokens(raw)).items():
        section, _, inner = key.partition(".")
        stated = completed.get(section)
        if stated is None:
            completed[section] = {inner: value}
        # A value that is not a section is refused for itself.
        elif isinstance(stated, dict):
            completed[section] = {inner: value, **stated}
            if inner in stated and section == "algorithm":
                kind = inner_kind(Algorithm, inner)
                completed[section][inner] = merged(value, spread(stated[inner], kind), kind)
    return completed


def markdown(asked: str | None = None) -> str:
    """A table of all presets, or of the one named `asked`."""
    lines = ["| preset | sets | source | of the source, not set |", "|---|---|---|---|"]
    for name, preset in PRESETS.items():
        if asked in (None, name):
            keys = [f"`{key}: {write_in_line(value)}`" for key, value in preset.settings.items()]
            if preset.overlong_share:
                share = f"{preset.overlong_share:g} of `rollout.max_new_tokens`"
                keys.append(f"`{OVERLONG}.buffer_tokens`: {share}")
            lines.append(f"| `{name}` | {', '.join(keys)} | {preset.source} | {preset.left_out} |")
    return "\n".join(lines)


def _max_new_tokens(raw: dict[str, Any]) -> int:
    rollout = raw.get("rollout")
    stated = rollout.get("max_new_tokens") if isinstance(rollout, dict) else None
    return stated if isinstance(stated, int) else Rollout().max_new_tokens
