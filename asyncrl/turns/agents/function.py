"""Runs an agent that is a function, in its own process: `python -m asyncrl.turns.agents.function NAME`."""

import asyncio
import inspect
import json
import os
import sys
from pathlib import Path

from asyncrl.turns.agents.task import VERDICT_VARIABLE, AgentTask
from verifiers.plugins import Plugins

FUNCTIONS = Plugins("agent", "asyncrl.agents", {})


def main() -> None:
    name = sys.argv[1]
    function = FUNCTIONS.find(name, None)
    if not inspect.iscoroutinefunction(function):
        sys.exit(f"agent.function is {name}, which is not an async function. Expected async def.")
    found = asyncio.run(function(AgentTask.read()))
    verdict = os.environ.get(VERDICT_VARIABLE)
    if verdict is not None and found is not None:
        Path(verdict).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
