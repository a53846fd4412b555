"""Names to tools: built in, "./file.py:function", "package.module:function" or an entry point of the group
`asyncrl.tools`. A function is the tool; a class is built with the options and called."""

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asyncrl.turns.environment import Recovery
from asyncrl.turns.tools.tool import Tool, schema_of
from verifiers.options import checked
from verifiers.plugins import Plugins

BUILT_IN = {
    "calculator": "asyncrl.turns.tools.calculator:calculator",
    "python": "asyncrl.turns.tools.python:PythonTool",
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
