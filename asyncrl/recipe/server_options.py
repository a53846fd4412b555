"""Which command-line options of SGLang 0.5.23 a recipe may add to its servers, and why others are refused.

server_options.yaml has the list, which `asyncrl keys` names.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asyncrl.recipe.yaml_text import read_yaml

STATES_PER_REQUEST = 4
"""States of linear attention that a server on a CPU has room for, per request at once: SGLang 0.5.23 needs
three of each, the rest are those of prefixes."""
FLOAT32_HEAD = "--enable-fp32-lm-head"
ROUTED_EXPERTS = "--enable-return-routed-experts"
QUANTIZATION = "--quantization"
CACHE_TYPE = "--kv-cache-dtype"
EXPERT_RANKS = "--expert-parallel-size"
ATTENTION_RANKS = "--attention-data-parallel-size"

_LISTED: dict[str, Any] = read_yaml(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
ALLOWED = frozenset(f"--{name}" for names in _LISTED["allowed"].values() for name in names)
REFUSED = {option: each["why"] for each in _LISTED["refused"] for option in each["options"]}
"""Beginning of an option -> why tokens or weights would be wrong with it, on servers of others too."""
UNUSED = {option: each["why"] for each in _LISTED["unused"] for option in each["options"]}
"""Beginning of an option -> why a recipe does not give it to its servers."""
KEYS = {option: key for key, options in _LISTED["keys"].items() for option in options}
"""Options that a key of the recipe stands for."""


def refuse_options(arguments: Sequence[str], key: str = "serving.extra_arguments") -> None:
    """Raises ValueError for the first option of which asyncrl knows why a server must not have it; `key`
    names them. Options that are not known here are refused before servers start, when the installed SGLang
    has said which it has (launch/engine_options.py)."""
    if arguments and not arguments[0].startswith("--"):
        raise ValueError(f"{key} begins with {arguments[0]!r}, expected an option such as --log-level.")
    for option in option_names(arguments):
        if option in ALLOWED:
            continue
        if option in KEYS:
            raise ValueError(f"{key} has {option}: asyncrl sets it. Remove it, and set {KEYS[option]}.")
        why = reason_against(option) or _first(UNUSED, option)
        if why is not None:
            raise ValueError(f"{key} has {option}: {why}. Remove it.")


def option_names(arguments: Sequence[str]) -> list[str]:
    """ "--name" of each option in a command line, without values."""
    return [argument.partition("=")[0] for argument in arguments if argument.startswith("--")]


def reason_against(option: str) -> str | None:
    """Why no server of a run may have `option`; None where no reason is known."""
    return _first(REFUSED, option)


def _first(reasons: Mapping[str, str], option: str) -> str | None:
    return next((why for beginning, why in reasons.items() if option.startswith(beginning)), None)
