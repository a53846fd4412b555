"""Environments, tools and agents are tried before a run starts: a broken one is a sentence, not a run for
nothing."""

from pathlib import Path
from typing import Any

import pytest
from fakes.recipes import make_recipe

from asyncrl.errors import InputError
from asyncrl.launch.turn_trial import made_arguments, try_turns
from asyncrl.recipe import Recipe
from asyncrl.records import EnvironmentSpec, Task, VerifierSpec
from asyncrl.turns.kit import TurnKit
from asyncrl.turns.tools import load_tools

OWN = '''
import os, time
from asyncrl.turns import End, EnvironmentUnavailable, Observation

class Works:
    def start(self, row): pass
    def step(self, text): return Observation("again")

class Raises(Works):
    def step(self, text): return text["x"]

class Dies(Works):
    def start(self, row): os._exit(4)

class Away(Works):
    def start(self, row): raise EnvironmentUnavailable("no server at http://127.0.0.1:1")

class Sleeps(Works):
    def step(self, text): time.sleep(1000)

def says(word: str, times: int = 1) -> str:
    """Says a word.

    Args:
        word: The word.
        times: How often.
    """
    return word * times

def refuses(word: str) -> str:
    """Refuses all.

    Args:
        word: The word.
    """
    raise ValueError("say something else")

def is_away(word: str) -> str:
    """Asks an index.

    Args:
        word: The word.
    """
    raise EnvironmentUnavailable("the index is away")

async def agent(task): pass

def no_agent(task): pass
'''


def recipe_with(folder: Path, **sections: Any) -> Recipe:
    (folder / "own.py").write_text(OWN)
    return make_recipe(folder, **sections)


def task_of(folder: Path, environment: str | None) -> Task:
    spec = None if environment is None else EnvironmentSpec(f"{folder}/own.py:{environment}")
    return Task("train:3", "p", (1,), "", VerifierSpec("exact"), environment=spec, row={"answer": 7})


def try_environment(folder: Path, name: str) -> None:
    recipe = recipe_with(folder, turns={"environment": "gym_feedback", "timeout_seconds": 2.0})
    try_turns(recipe, TurnKit(None), [task_of(folder, "Works"), task_of(folder, name)])  # type: ignore[arg-type]


def try_tools(folder: Path, *names: str) -> None:
    named = [f"{folder}/own.py:{name}" for name in names]
    recipe = recipe_with(folder, turns={"tools": named})
    kit = TurnKit(None, tuple(load_tools(named, folder)))  # type: ignore[arg-type]
    try_turns(recipe, kit, [task_of(folder, None)])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "Raises",
            r"train:3: the environment .* failed when it was tried: step raised TypeError(.|\n)*own\.py",
        ),
        ("Dies", "ended by itself, with exit code 4"),
        ("Away", "no server at http://127.0.0.1:1"),
        ("Sleeps", r"meets a limit on .* took more than 2 s .*raise turns\.timeout_seconds"),
        ("Missing", "Missing"),
    ],
)
def test_an_environment_that_would_answer_nothing_is_refused_with_its_row(
    name: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=said):
        try_environment(tmp_path, name)


def test_what_works_is_let_through_also_a_tool_that_refuses_in_words(tmp_path: Path) -> None:
    try_environment(tmp_path, "Works")
    try_tools(tmp_path, "says", "refuses")


def test_a_tool_that_would_answer_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match='the tool "is_away" failed when it was tried: the index is away'):
        try_tools(tmp_path, "says", "is_away")


def test_made_arguments_are_those_that_a_tool_requires() -> None:
    properties = {
        "a": {"type": "string"},
        "b": {"type": "integer"},
        "c": {"type": "string", "enum": ["x", "y"]},
        "d": {},
        "e": {"type": "array"},
        "f": {"type": "object"},
    }
    parameters = {"properties": properties, "required": ["a", "b", "c", "d", "e"]}
    found = made_arguments({"function": {"parameters": parameters}})
    assert found == {"a": "0", "b": 0, "c": "x", "d": "0", "e": []}


@pytest.mark.parametrize(
    ("agent", "said"),
    [
        ({"function": "{folder}/own.py:agent"}, ""),
        ({"function": "{folder}/own.py:no_agent"}, "is not an async function"),
        ({"function": "{folder}/own.py:missing"}, "agent.function cannot be loaded: .*missing"),
        ({"command": ["python", "agent.py"]}, ""),
        ({"command": ["no-such-program", "agent.py"]}, "agent.command begins with 'no-such-program'"),
    ],
)
def test_an_agent_that_cannot_be_started_is_refused(agent: dict[str, Any], said: str, tmp_path: Path) -> None:
    if "function" in agent:
        agent = {"function": agent["function"].format(folder=tmp_path)}
    recipe = recipe_with(tmp_path, agent=agent)
    if not said:
        try_turns(recipe, TurnKit(None), [])  # type: ignore[arg-type]
    else:
        with pytest.raises(InputError, match=said):
            try_turns(recipe, TurnKit(None), [])  # type: ignore[arg-type]
