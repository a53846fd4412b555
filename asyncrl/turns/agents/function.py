"""Runs an agent that is a function, in its own process: `python -m asyncrl.turns.agents.function NAME`."""

import asyncio
import inspect
import json
import os
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from asyncrl.turns.agents.task import VERDICT_VARIABLE, AgentTask
from verifiers.plugins import Plugins

FUNCTIONS = Plugins("agent", "asyncrl.agents", {})


def find_function(name: str) -> Callable[[AgentTask], Coroutine[Any, Any, Any]]:
    """Ends the process where it is no async function."""
    function = FUNCTIONS.find(name, None)
    if not inspect.iscoroutinefunction(function):
        sys.exit(f"agent.function is {name}, which is not an async function. Expected async def.")
    return function


def main() -> None:
    function = find_function(sys.argv[1])
    found = asyncio.run(function(AgentTask.read()))
    verdict = os.environ.get(VERDICT_VARIABLE)
    if verdict is not None and found is not None:
        Path(verdict).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
