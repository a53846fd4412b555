"""A trial of environments, tools and the agent before a run starts, as `trial.py` is one of verifiers.

Each environment starts on a row and answers a nonsense turn, and each tool a made call, in processes as in a
run. An agent's function is loaded and its program looked for: without a model there is nothing to start it
with.
"""

import asyncio
import shutil
from collections.abc import Sequence
from typing import Any

from asyncrl.controller.inputs import hidden_files, make_episodes
from asyncrl.errors import InputError
from asyncrl.launch.trial import NONSENSE, shown
from asyncrl.recipe import Recipe
from asyncrl.records import Task
from asyncrl.rollout.agents.function import load_function
from asyncrl.rollout.agents.process import agent_command
from asyncrl.system.paths import search_path
from asyncrl.turns.calls import Call
from asyncrl.turns.episode import EnvironmentFault, Episode, TurnLimit
from asyncrl.turns.kit import TurnKit
from asyncrl.turns.pool import EpisodePool
from asyncrl.turns.tools import Tool

_MADE = {"string": "0", "integer": 0, "number": 0, "boolean": False, "array": [], "object": {}}


def try_turns(recipe: Recipe, kit: TurnKit, tasks: Sequence[Task]) -> None:
    """Raises InputError for the first environment, tool or agent that fails, naming the row."""
    if recipe.agent.is_on():
        _try_agent(recipe)
    episodes = make_episodes(recipe, None, hidden_files(recipe, None))
    if episodes is not None:
        asyncio.run(_try_all(episodes, kit.tools, tasks))


async def _try_all(episodes: EpisodePool, tools: Sequence[Tool], tasks: Sequence[Task]) -> None:
    first: dict[str, Task] = {}
    for task in tasks:
        first.setdefault(repr(task.environment), task)
    async with episodes:
        for task in first.values():
            title = f"trying the tools on {task.task_id}"
            if task.environment is not None:
                title = f'trying the environment "{task.environment.name}" on {task.task_id}'
            await shown(_try_one(episodes, tools, task), title, "no answer yet")


async def _try_one(episodes: EpisodePool, tools: Sequence[Tool], task: Task) -> None:
    name = "the tools" if task.environment is None else f'the environment "{task.environment.name}"'
    episode: Episode | None = None
    try:
        episode = await episodes.open(task.environment)
        await episode.start(task.row)
        if task.environment is not None:
            await episode.step(NONSENSE)
        for tool in tools:
            name = f'the tool "{tool.name}"'
            await episode.call([Call(tool.name, made_arguments(tool.schema))])
    except EnvironmentFault as fault:
        raise InputError(
            f"{task.task_id}: {name} failed when it was tried: {fault}. So it would give no answer in a run; "
            f"docs/turns.md shows how to check it.\n{fault.trace}".rstrip()
        ) from fault
    except TurnLimit as limit:
        raise InputError(
            f"{task.task_id}: {name} meets a limit on {NONSENSE!r}: {limit}. So it would find every response "
            f"wrong. Make it faster, or raise turns.timeout_seconds or turns.memory_mib."
        ) from limit
    finally:
        if episode is not None:
            await episode.close()


def made_arguments(schema: dict[str, Any]) -> dict[str, Any]:
    """Arguments for a call that the schema of a tool allows, as far as types say it."""
    parameters = schema["function"]["parameters"]
    return {name: _made(parameters["properties"][name]) for name in parameters.get("required", [])}


def _made(kind: dict[str, Any]) -> Any:
    if kind.get("enum"):
        return kind["enum"][0]
    return _MADE.get(str(kind.get("type")), "0")


def _try_agent(recipe: Recipe) -> None:
    agent = recipe.agent
    if agent.function is not None:
        try:
            load_function(agent.function)
        # Code of the user's runs: whatever it raises, it cannot be loaded.
        except (Exception, SystemExit) as error:
            raise InputError(f"agent.function cannot be loaded: {type(error).__name__}: {error}") from error
        return
    program, *_ = agent_command(agent.command, None, recipe.verifying.own_files())
    path = search_path()
    if shutil.which(program, path=path) is None:
        raise InputError(
            f"agent.command begins with {program!r}, which is no program on the PATH and no file that may be "
            f"executed in the recipe's folder. Name one, such as python."
        )
