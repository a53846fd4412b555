"""The arguments of a call from Python: each is of its kind, or the call is refused before any work starts."""

import contextlib
import functools
import inspect
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from asyncrl.errors import InputError, did_you_mean
from asyncrl.system.paths import unusable_path

P = ParamSpec("P")
R = TypeVar("R")
_MOST_NAME_BYTES = 200
"""Length of a folder's name: file systems take 255, and a number is added."""


@dataclass(frozen=True, slots=True)
class Kind:
    words: str
    """The values that are expected, for sentences."""
    holds: Callable[[Any], bool]

    def or_none(self) -> "Kind":
        return Kind(self.words, lambda value: value is None or self.holds(value))

    def __or__(self, other: "Kind") -> "Kind":
        return Kind(f"{self.words}, or {other.words}", lambda value: self.holds(value) or other.holds(value))


def is_text(value: Any) -> bool:
    """Whether it is text that a file can hold and a path can be made of."""
    if not isinstance(value, str) or not value or "\0" in value:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_path(value: Any) -> bool:
    return is_text(str(value) if isinstance(value, Path) else value)


def is_count(value: Any) -> bool:
    """Numbers of numpy are counts, too."""
    return isinstance(value, Integral) and not isinstance(value, bool) and 0 < int(value) < 2**63


def is_folder_name(value: Any) -> bool:
    is_name = is_text(value) and "/" not in value and value not in (".", "..") and value[0] != "~"
    return is_name and len(value.encode()) <= _MOST_NAME_BYTES


TEXT = Kind("text", is_text)
PATH = Kind("a path as text or pathlib.Path", is_path)
COUNT = Kind("a whole number above 0", is_count)
FLAG = Kind("True or False", lambda value: isinstance(value, bool))
FOLDER_NAME = Kind(f"the name of a folder, without / and of {_MOST_NAME_BYTES} bytes at most", is_folder_name)
STEPS = Kind(
    "a step, counted from 1, or a pair of first and last",
    lambda value: is_count(value) or (_has_each(is_count, value, tuple) and len(value) == 2),
)
PLACES = Kind(
    'base, best, last or a step, or a list of them, such as ["base", "last"]',
    lambda value: _is_place(value) or _has_each(_is_place, value, (list, tuple)),
)
OPTION = Kind(
    "the value of an option of `asyncrl eval`",
    lambda value: value is None or isinstance(value, bool | int | float) or is_path(value),
)


def _is_place(value: Any) -> bool:
    return is_text(value) or is_count(value)


def _has_each(holds: Callable[[Any], bool], values: Any, kind: Any) -> bool:
    return isinstance(values, kind) and len(values) > 0 and all(map(holds, values))


def instance(kind: type | tuple[type, ...], words: str) -> Kind:
    return Kind(words, lambda value: isinstance(value, kind))


def refusal(name: str, value: Any, expected: str) -> InputError:
    """The sentence about an argument of the wrong kind."""
    return InputError(f"{name} is {shown(value)}, expected {expected}.")


def shown(value: Any) -> str:
    """Short, whatever the value is: its own words may be without end, or raise."""
    with contextlib.suppress(Exception):
        words = _SHORT.repr(value)
        if not words.startswith("<"):
            return words
    return f"an object of {type(value).__name__}"


def checked(**kinds: Kind) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A function whose arguments are of their kinds; of *names and **names each one is, and one without a
    kind is looked at where it is used. Raises InputError for others, for a call that does not fit the
    parameters, and for paths that can name no file."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)
        title = "asyncrl." + function.__qualname__.removesuffix(".__init__")

        @functools.wraps(function)
        def call(*args: P.args, **named: P.kwargs) -> R:
            try:
                bound = signature.bind(*args, **named)
            except TypeError as error:
                raise InputError(_misfit(title, signature, str(error), named)) from None
            for name, value in bound.arguments.items():
                if name in kinds:
                    _check(name, value, kinds[name], signature.parameters[name])
            try:
                return function(*args, **named)
            except (OSError, RuntimeError) as error:
                if (refused := unusable_path(error)) is None:
                    raise
                raise refused from error

        return call

    return decorate


def _check(name: str, value: Any, kind: Kind, parameter: inspect.Parameter) -> None:
    match parameter.kind:
        case inspect.Parameter.VAR_POSITIONAL:
            each = [(name.removesuffix("s"), inner) for inner in value]
        case inspect.Parameter.VAR_KEYWORD:
            each = list(value.items())
        case _:
            each = [(name, value)]
    for title, inner in each:
        if not kind.holds(inner):
            raise refusal(title, inner, kind.words)


def _misfit(title: str, signature: inspect.Signature, said: str, named: Mapping[str, Any]) -> str:
    names = [name for name in signature.parameters if name != "self"]
    meant = next((near for word in named if word not in names and (near := did_you_mean(word, names))), "")
    takes = f" It takes ({', '.join(names)})."
    return f"{title}: {said}.{meant or takes}"


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80
