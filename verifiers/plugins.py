"""Classes by name: built in, of a file of the user's, of a module, or of an installed package's entry point;
and their options, checked against the signature of what takes them.

Verifiers and environments are found by it. Owns the sentences for names and options that are wrong. The
annotations of the keyword parameters are the schema: a type, a Literal, a tuple of them, or a number
Annotated with Bounds. Checked with pydantic where one is loaded by its name; a worker is sent values that
were checked, and never imports pydantic."""

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal, Unpack, cast, get_args, get_origin, get_type_hints


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


_OWN_MODULE = re.compile(r"asyncrl_plugin_(\w+)_[0-9a-f]{12}")
Plugin = Callable[..., object]
"""A class, or what builds an object of one."""


def in_words(text: str) -> str:
    """`text` with files by their stems, where Python names the modules that they are loaded as."""
    return _OWN_MODULE.sub(r"\1", text)


@dataclass(frozen=True, slots=True)
class Plugins:
    """Names of one kind of plug-in."""

    kind: str
    """In error messages, such as "verifier"."""
    group: str
    """Entry points of installed packages."""
    built_in: Mapping[str, str]
    """Name to "module:Class"."""

    def find(self, name: str, folder: Path | None) -> Plugin:
        """The class called `name`; a path is relative to `folder`. Raises ValueError with a sentence that
        names the mistake, and what a module raises that is imported."""
        if name in self.built_in:
            return self._from_module(name, self.built_in[name])
        file, colon, attribute = name.rpartition(":")
        if colon and (file.endswith(".py") or "/" in file):
            return self._attribute(name, self._module_of_file(name, file, folder), attribute)
        if colon:
            return self._from_module(name, name)
        # Heavy, and a process that is forked for each conversation pays for each module of its template.
        from importlib.metadata import entry_points

        installed = entry_points(group=self.group)
        if name in installed.names:
            return cast(Plugin, installed[name].load())
        known = [*self.built_in, *sorted(installed.names)]
        raise ValueError(
            f"There is no {self.kind} {name!r}.{nearest(name, known)} Known: {', '.join(known)}; "
            "or name your own as package.module:Name or ./file.py:Name."
        )

    def say(self, name: str) -> str:
        """The beginning of a sentence about one, such as "Verifier 'math'"."""
        return f"{self.kind.capitalize()} {name!r}"

    def _from_module(self, name: str, target: str) -> Plugin:
        module_name, _, attribute = target.partition(":")
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            raise ValueError(
                f"{self.say(name)} needs the module {error.name!r}, which cannot be imported."
            ) from error
        return self._attribute(name, module, attribute)

    def _module_of_file(self, name: str, file: str, folder: Path | None) -> ModuleType:
        path = ((folder or Path.cwd()) / file).resolve()
        if not path.is_file():
            beside = [each.name for each in path.parent.glob("*.py")]
            raise ValueError(
                f"{self.say(name)}: there is no file {path}. The path is relative to {folder or Path.cwd()}."
                f"{nearest(path.name, beside)}"
            )
        # A name of its own per path: two files called reward.py must not replace each other, and an object
        # of the file's must unpickle in a worker, which loads the same path and so gets the same name.
        module_name = f"asyncrl_plugin_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
        if module_name in sys.modules:
            return sys.modules[module_name]
        spec = importlib.util.spec_from_file_location(module_name, path)
        if spec is None or spec.loader is None:
            raise ValueError(f"{self.say(name)}: {path} is not a Python file.")
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException as error:
            del sys.modules[module_name]
            if isinstance(error, Exception):
                raise ValueError(
                    f"{self.say(name)}: {path} failed to load: {type(error).__name__}: {in_words(str(error))}"
                ) from error
            raise
        return module

    def _attribute(self, name: str, module: ModuleType, attribute: str) -> Plugin:
        found = getattr(module, attribute, None)
        if not callable(found):
            own = [
                each for each in vars(module).values() if getattr(each, "__module__", "") == module.__name__
            ]
            public = [each.__name__ for each in own if callable(each) and each.__name__[0] != "_"]
            raise ValueError(
                f"{self.say(name)}: {name.rpartition(':')[0] or module.__name__} has no class {attribute!r}."
                f"{nearest(attribute, public)} It has: {', '.join(public) or 'none'}."
            )
        return cast(Plugin, found)
