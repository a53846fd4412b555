"""Tools: a function of the user's or ours, its schema, what it makes of a call's arguments, and its name."""

import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pydantic

from asyncrl.turns.environment import Recovery
from verifiers.plugins import Plugins, checked, unresolved

_KINDS = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object"}
_ARGUMENT = re.compile(r"^\s*(\w+)\s*(?:\([^)]*\))?:\s*(.+)$")


@dataclass(frozen=True, slots=True)
class Tool:
    """Built per trajectory, in the process of its episode."""

    name: str
    schema: dict[str, Any]
    """{"type": "function", "function": {"name", "description", "parameters"}}."""
    function: Callable[..., Any]
    """Sync or async; takes what the schema says, gives text or what is written as text."""
    recovery: Recovery = Recovery.STATELESS
    tag: str = ""
    """Tag of its calls under turns.call_format: tags."""
    result_tag: str = "output"
    close: Callable[[], Any] | None = None
    """Gives back what it holds. Sync or async."""

    def arguments(self) -> list[str]:
        return list(self.schema["function"]["parameters"]["properties"])

    def checked(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as its type hints say. Raises ValueError in words for the model."""
        known = self.arguments()
        unknown = [name for name in arguments if name not in known]
        if unknown:
            raise ValueError(f"{self.name} has no argument {unknown[0]!r}. It takes {', '.join(known)}.")
        hints = _hints(self.function)
        missing = [
            name
            for name, parameter in _parameters(self.function).items()
            if parameter.default is inspect.Parameter.empty and name not in arguments
        ]
        if missing:
            raise ValueError(f"{self.name} needs the argument {missing[0]!r}.")
        try:
            return {
                name: pydantic.TypeAdapter(hints[name]).validate_python(value)
                for name, value in arguments.items()
            }
        except pydantic.ValidationError as error:
            problem = error.errors(include_url=False)[0]
            raise ValueError(f"an argument of {self.name} is not as expected: {problem['msg']}.") from None


def schema_of(function: Callable[..., Any], name: str) -> dict[str, Any]:
    """Raises ValueError that says what the function lacks."""
    documented = inspect.cleandoc(function.__doc__ or "")
    if not documented:
        raise ValueError(f"{name} has no docstring: the model would not know what the tool does.")
    description, described = _read_docstring(documented)
    try:
        hints = _hints(function)
    except Exception as error:  # hints are code of the user
        raise unresolved(f"tool {name!r}", error) from error
    properties, required = dict[str, Any](), list[str]()
    for argument, parameter in _parameters(function).items():
        if argument not in hints:
            raise ValueError(f"the argument {argument} of {name} has no type hint.")
        if argument not in described:
            raise ValueError(f'the docstring of {name} does not describe {argument} under "Args:".')
        kind = _schema_of_type(hints[argument], f"{argument} of {name}")
        properties[argument] = {**kind, "description": described[argument]}
        if parameter.default is inspect.Parameter.empty:
            required.append(argument)
    parameters: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        parameters["required"] = required
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {
        name: parameter
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind in named and name != "self"
    }


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    target = function if inspect.isroutine(function) else type(function).__call__
    return typing.get_type_hints(target)


def _read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """The text in front of "Args:", and the description of each argument."""
    description, _, rest = text.partition("\nArgs:")
    described: dict[str, str] = {}
    name = ""
    for line in rest.split("\nReturns:")[0].splitlines():
        found = _ARGUMENT.match(line)
        if found:
            name = found.group(1)
            described[name] = found.group(2).strip()
        elif name and line.strip():
            described[name] += " " + line.strip()
    return description.split("\nReturns:")[0].strip(), described


def _schema_of_type(hint: Any, where: str) -> dict[str, Any]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return {}
    if hint in _KINDS:
        return {"type": _KINDS[hint]}
    if origin is typing.Literal:
        kinds = {_KINDS.get(type(value), "string") for value in arguments}
        return {"type": kinds.pop() if len(kinds) == 1 else sorted(kinds), "enum": list(arguments)}
    if origin is list:
        return {"type": "array", "items": _schema_of_type(arguments[0], where)}
    if origin is dict:
        inner = _schema_of_type(arguments[1], where)
        return {"type": "object", "additionalProperties": inner}
    if origin in (typing.Union, types.UnionType):
        some = [_schema_of_type(each, where) for each in arguments if each is not type(None)]
        if len(some) == 1:
            return {**some[0], "nullable": True} if type(None) in arguments else some[0]
    raise ValueError(
        f"the type of {where} is {hint}, expected str, int, float, bool, list[...], dict[str, ...], a "
        f"Literal, or one of these or None."
    )


BUILT_IN = {
    "calculator": "asyncrl.turns.built_in_tools:calculator",
    "python": "asyncrl.turns.built_in_tools:PythonTool",
}
TOOLS = Plugins("tool", "asyncrl.tools", BUILT_IN)
OWN_OPTIONS = ("tag", "result_tag")
"""Options of any tool, for turns.call_format: tags."""

Named = str | Mapping[str, Mapping[str, Any]]
"""A name, or {name: options}."""


def load_tools(named: Sequence[Named], folder: Path | None) -> list[Tool]:
    """The tools of a recipe, in order. Raises ValueError with a sentence that names the mistake."""
    tools: list[Tool] = []
    for each in named:
        name, options = (each, {}) if isinstance(each, str) else next(iter(each.items()))
        tool = load_tool(name, options, folder)
        if any(other.name == tool.name for other in tools):
            raise ValueError(
                f"turns.tools names two tools {tool.name!r}: a call could mean either. Rename one."
            )
        tools.append(tool)
    return tools


def load_tool(name: str, options: Mapping[str, Any], folder: Path | None) -> Tool:
    """Raises ValueError with a sentence that names the mistake."""
    found: Any = TOOLS.find(name, folder)
    short = name.rpartition(":")[2]
    tag = str(options.get("tag", short))
    result_tag = str(options.get("result_tag", "output"))
    others = {key: value for key, value in options.items() if key not in OWN_OPTIONS}
    if inspect.isclass(found):
        built: Any = found(**checked(TOOLS.say(name), found, others))
        recovery = Recovery(getattr(built, "recovery", Recovery.NEITHER))
        schema = schema_of(built, short)
        return Tool(short, schema, built, recovery, tag, result_tag, getattr(built, "close", None))
    if others:
        raise ValueError(f"{TOOLS.say(name)} is a function, which takes no options: {', '.join(others)}.")
    recovery = Recovery(getattr(found, "recovery", Recovery.STATELESS))
    return Tool(short, schema_of(found, short), found, recovery, tag, result_tag)
