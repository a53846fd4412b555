"""Names to tools: built in, "./file.py:function", "package.module:function" or an entry point of the group
`asyncrl.tools`. A function is the tool; a class is built with the options and called."""

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asyncrl.turns.environment import Recovery
from asyncrl.turns.tools.tool import Tool, schema_of
from verifiers.options import checked
from verifiers.registry import find_object

ENTRY_POINT_GROUP = "asyncrl.tools"
BUILT_IN = {"calculator": "asyncrl.turns.tools.calculator:calculator"}
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
    found = find_object(name, built_in=BUILT_IN, group=ENTRY_POINT_GROUP, kind="tool", folder=folder)
    own = {key: str(options[key]) for key in OWN_OPTIONS if key in options}
    others = {key: value for key, value in options.items() if key not in OWN_OPTIONS}
    short = _short_name(name)
    if inspect.isclass(found):
        built = found(**checked(found, others, f'the tool "{name}"'))
        recovery = Recovery(getattr(built, "recovery", Recovery.NEITHER))
        close = getattr(built, "close", None)
        return Tool(
            short, schema_of(built, short), built, recovery, own.get("tag", short), _result(own), close
        )
    if others:
        raise ValueError(f'the tool "{name}" is a function, which takes no options: {", ".join(others)}.')
    recovery = Recovery(getattr(found, "recovery", Recovery.STATELESS))
    return Tool(short, schema_of(found, short), found, recovery, own.get("tag", short), _result(own))


def _result(own: Mapping[str, str]) -> str:
    return own.get("result_tag", "output")


def _short_name(name: str) -> str:
    return name.rpartition(":")[2]
