"""The datasets of reasoning-gym: which there are, built from a configuration, with scorers that run no code.

Owns every import of the package, which takes seconds: only processes that make tasks or grade do it."""

import ast
import builtins
import dataclasses
import functools
import importlib.metadata
import json
import keyword
import os
import re
import sys
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, Protocol

from verifiers.gym.entries import Entry
from verifiers.plugins import nearest

# `__import__('os').system(...)` as an answer would run, and `setattr` could change what later answers score.
# Plain formulas need numbers, operators, letters and a few functions; an answer with anything else is wrong
# whatever its value.
_TOKEN = re.compile(r"\s+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[A-Za-z][A-Za-z0-9_]*|\*\*|[-+*/^(),!]")
_FUNCTIONS = frozenset(
    "pi E I sqrt cbrt exp log ln Abs abs sign erf gamma factorial "
    "sin cos tan cot sec csc asin acos atan acot asec acsc sinh cosh tanh coth sech csch "
    "asinh acosh atanh acoth asech acsch".split()
)


def is_plain_formula(text: str) -> bool:
    """Whether nothing but numbers, operators, variables and functions of mathematics is in it."""
    at = 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None or not _is_harmless(token.group()):
            return False
        at = token.end()
    return True


def _is_harmless(token: str) -> bool:
    if not token[0].isalpha() or token in _FUNCTIONS:
        return True
    # Where parse_expr runs, sympy is there, too.
    import sympy

    # An unknown name becomes a variable.
    return not (keyword.iskeyword(token) or hasattr(builtins, token) or hasattr(sympy, token))


DISTRIBUTION = "reasoning-gym"
MISSING = (
    "reasoning-gym, which makes and grades the tasks of a gym, is not installed. Run `make setup GYM=1`, or "
    "`pip install --no-deps -r gym.lock` in the environment of asyncrl."
)
NO_DATASETS = {
    "composite": "it mixes other datasets: list them in data.train, each as {gym: ..., weight: ...}"
}
"""Names that reasoning-gym registers and we refuse, with the reason."""
EVALUATED = frozenset(
    ["countdown", "puzzle24", "polynomial_multiplication", "simple_integration", "intermediate_integration"]
)
"""Datasets whose scorers evaluate the answer as a formula, by sympy."""
LITERALS = frozenset(["binary_matrix", "n_queens", "number_sorting", "spiral_matrix", "string_insertion"])
"""Datasets whose scorers evaluate the answer as Python, because it may be a list."""


class Dataset(Protocol):
    """The part of reasoning-gym's `ProceduralDataset` that we use."""

    def __getitem__(self, index: int) -> Entry: ...

    def score_answer(self, answer: str | None, entry: Entry) -> float: ...


def installed_version() -> str:
    """Version of reasoning-gym. Raises ValueError with the fix when it is not installed."""
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        raise ValueError(MISSING) from None


@functools.lru_cache(maxsize=256)
def load_dataset(name: str, config: str, *, seed: int = 0, size: int = 1) -> Dataset:
    """The dataset `name` with a configuration in JSON. Raises ValueError for one that there is not."""
    return build_dataset(name, json.loads(config), seed=seed, size=size)


def build_dataset(name: str, config: Mapping[str, Any], *, seed: int, size: int) -> Dataset:
    """Raises ValueError with a sentence that names the mistake."""
    classes = _registered()
    if name in NO_DATASETS:
        raise ValueError(f"{name!r} of reasoning-gym has no tasks of its own: {NO_DATASETS[name]}.")
    if name not in classes:
        known = sorted(classes.keys() - NO_DATASETS.keys())
        hint = nearest(name, known) or f" Its datasets: {', '.join(known)}."
        raise ValueError(f"reasoning-gym {installed_version()} has no dataset {name!r}.{hint}")
    kind, config_kind = classes[name]
    known = [field.name for field in dataclasses.fields(config_kind) if field.name not in ("seed", "size")]
    for key in config:
        if key in ("seed", "size"):
            raise ValueError(f"The config of {name!r} has {key!r}: set `{key}` of the source instead.")
        if key not in known:
            raise ValueError(
                f"The config of {name!r} has no key {key!r}.{nearest(key, known)} "
                f"Its keys: {', '.join(known) or 'none'}."
            )
    try:
        # Its constructor validates the configuration.
        dataset: Dataset = kind(config_kind(**config, seed=seed, size=size))
    except Exception as error:  # whatever a configuration makes the package raise
        words = str(error) or "it is not valid"
        raise ValueError(f"The config of {name!r} is {dict(config)!r}: {words.rstrip('.')}.") from error
    if name in LITERALS:
        # The scorer's own module: its `eval` reads lists, and nothing else, from now on.
        vars(sys.modules[kind.__module__])["eval"] = ast.literal_eval
    return dataset


def import_package() -> None:
    """Imports reasoning-gym, which takes seconds. Raises ValueError with the fix when it is not installed."""
    _registered()


def _registered() -> dict[str, tuple[type[Any], type[Any]]]:
    installed_version()
    # Threads of a library would be lost in a forked worker, and reserve memory that its limit counts.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from reasoning_gym.factory import DATASETS

    classes: dict[str, tuple[type[Any], type[Any]]] = DATASETS
    return classes


def may_be_scored(name: str, answer: str) -> bool:
    """Whether the scorer of `name` may see the answer."""
    return name not in EVALUATED or is_plain_formula(answer)


def _uses_the_numbers(answer: str, entry: Entry) -> bool:
    used = sorted(int(number) for number in re.findall(r"\d+", answer))
    return used == sorted(entry["metadata"]["numbers"])


def _says_the_same(answer: str, entry: Entry) -> bool:
    return answer.strip().casefold() == str(entry["answer"]).casefold()


def _is_close(answer: str, entry: Entry) -> bool:
    return abs(Fraction(answer.replace(",", "")) - Fraction(entry["answer"])) <= Fraction(1, 10_000)


def _is_finite(answer: str, entry: Entry) -> bool:
    return not re.search("nan|inf", answer, re.IGNORECASE)


CONDITIONS: dict[str, Callable[[str, Entry], bool]] = {
    "coin_flip": _is_close,
    "complex_arithmetic": _is_finite,
    "game_of_life_halting": _says_the_same,
    "puzzle24": _uses_the_numbers,
}
"""Conditions on an answer that scores 1.0, where a scorer gives 1.0 to one that solves nothing: 0 for a
probability of 0.375, nan for a complex number, any text for True or False, 6*4*1*1 whatever the numbers."""
