"""Runs an agent that is a function, in its own process: `python -m asyncrl.rollout.agents.function NAME`."""

import asyncio
import inspect
import json
import os
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from asyncrl.rollout.agents.task import VERDICT_VARIABLE, AgentTask
from verifiers.plugins import Plugins

FUNCTIONS = Plugins("agent", "asyncrl.agents", {})


AgentFunction = Callable[[AgentTask], Coroutine[Any, Any, Any]]


def load_function(name: str) -> AgentFunction:
    """Raises ValueError with a sentence that names the mistake."""
    found: Any = FUNCTIONS.find(name, None)
    if not inspect.iscoroutinefunction(found):
        raise ValueError(f"agent.function is {name}, which is not an async function. Expected async def.")
    function: AgentFunction = found
    return function


def function_of_process(name: str) -> AgentFunction:
    """The function that this process is for; ends it with a sentence where there is none."""
    try:
        return load_function(name)
    except ValueError as error:
        sys.exit(str(error))


def main() -> None:
    function = function_of_process(sys.argv[1])
    found = asyncio.run(function(AgentTask.read()))
    verdict = os.environ.get(VERDICT_VARIABLE)
    if verdict is not None and found is not None:
        Path(verdict).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
