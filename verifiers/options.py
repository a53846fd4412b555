"""Options of plug-ins, checked against the signature of what takes them.

The annotations of the keyword parameters are the schema: a type, a Literal, a tuple of them, or a number
Annotated with Bounds. Checked with pydantic where one is loaded by its name; a worker is sent values
that were checked, and never imports pydantic."""

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Unpack, get_args, get_origin, get_type_hints


@dataclass(frozen=True, slots=True)
class Bounds:
    """`least` and `most` are allowed, `below` is not."""

    least: float
    most: float | None = None
    below: float | None = None

    def __str__(self) -> str:
        if self.most is None and self.below is None:
            return f"of at least {self.least:g}"
        return f"in [{self.least:g}, " + (f"{self.most:g}]" if self.below is None else f"{self.below:g})")


def nearest(word: str, known: Sequence[str]) -> str:
    """ " Did you mean 'math'?" or an empty string."""
    names = {name.casefold(): name for name in known}
    close = difflib.get_close_matches(word.casefold(), list(names), n=1, cutoff=0.5)
    return f" Did you mean {names[close[0]]!r}?" if close else ""


def unresolved(said: str, error: Exception) -> ValueError:
    """The error for a plug-in with an annotation that raised `error` when it was evaluated."""
    return ValueError(
        f"An annotation of {said} cannot be resolved ({type(error).__name__}: {error}). Import the "
        f"name where the module runs, not under TYPE_CHECKING alone, or write another type."
    )


def checked(
    said: str,
    target: Callable[..., object],
    options: Mapping[str, object],
    *,
    internal: Sequence[str] = (),
) -> dict[str, Any]:
    """The options with their types, as plain values; those left out stay so.

    `said`: the plug-in in words, such as "Verifier 'math'". `internal`: parameters of `target` that are no
    options. Raises ValueError with a sentence that names the option."""
    try:
        signature = inspect.signature(target, eval_str=True)
    except Exception as error:  # annotations are code of the user
        raise unresolved(said, error) from error
    known = _options_of(signature, internal)
    for name in options:
        if name not in known:
            raise ValueError(
                f"{said} has no option {name!r}.{nearest(name, list(known))} "
                f"Its options: {', '.join(sorted(known)) or 'none'}."
            )
    for name, parameter in known.items():
        if parameter.default is parameter.empty and name not in options:
            expected = _expected(parameter.annotation)
            raise ValueError(f"{said} needs the option {name!r}, expected {expected}.")
    return {name: _checked(said, name, known[name].annotation, value) for name, value in options.items()}


def _options_of(signature: inspect.Signature, internal: Sequence[str]) -> dict[str, inspect.Parameter]:
    """Parameters that are options by name; `**name: Unpack[Kind]` stands for the keys of Kind."""
    found = {}
    for name, parameter in signature.parameters.items():
        if get_origin(parameter.annotation) is Unpack:
            (kind,) = get_args(parameter.annotation)
            for key, hint in get_type_hints(kind, include_extras=True).items():
                # Its default is that of what reads it.
                found[key] = inspect.Parameter(key, parameter.KEYWORD_ONLY, default=None, annotation=hint)
        elif name not in internal:
            found[name] = parameter
    return found


def _checked(said: str, name: str, annotation: Any, value: object) -> Any:
    # Here, so that a process which only runs verifiers starts without it.
    from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

    schema = annotation
    if get_origin(annotation) is Annotated:
        kind, bounds = get_args(annotation)
        schema = Annotated[kind, Field(ge=bounds.least, le=bounds.most, lt=bounds.below)]
        if kind is int and isinstance(value, float) and value.is_integer():
            value = int(value)
    if get_origin(annotation) is tuple:
        # A command line gives a list as words with commas between them, a recipe as a list.
        value = [part for part in value.split(",") if part] if isinstance(value, str) else value
        value = tuple(value) if isinstance(value, list) else value
    try:
        return TypeAdapter(schema, config=ConfigDict(strict=True)).validate_python(value)
    except ValidationError as error:
        wrong = error.errors()[0]["input"]
        if isinstance(value, tuple) and wrong is not value:
            annotation = get_args(annotation)[0]
        allowed = get_args(annotation) if get_origin(annotation) is Literal else ()
        hint = nearest(wrong, allowed) if isinstance(wrong, str) else ""
        raise ValueError(
            f"Option {name!r} of {said[0].lower()}{said[1:]} is {wrong!r}, expected "
            f"{_expected(annotation)}.{hint}"
        ) from error


_WORDS: dict[Any, str] = {
    bool: "true or false",
    str: "a string",
    float: "a number",
    int: "a whole number",
    list: "a list",
    dict: "an object",
    type(None): "null",
}


def _expected(annotation: Any) -> str:
    """In words, the values that an annotation allows."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation in _WORDS:
        return _WORDS[annotation]
    if origin is Annotated:
        kind, bounds = arguments
        return f"{_WORDS[kind]} {bounds}"
    if origin is Literal:
        return f"one of {', '.join(arguments)}"
    if origin is tuple:
        return f"a list, each {_expected(arguments[0])}" if arguments[0] is not str else "a list of strings"
    if origin in _WORDS:
        return _WORDS[origin]
    return " or ".join(map(_expected, arguments))
