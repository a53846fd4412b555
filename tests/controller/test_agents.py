"""Real agents, as processes, against the endpoint of a run on a fake engine."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes.agents import Played, agents_on
from fakes.chat_codec import END, make_chat_codec
from fakes.recipes import make_recipe

from asyncrl.controller.agents import make_agent_kit
from asyncrl.controller.assemble import _make_completion
from asyncrl.errors import InputError
from asyncrl.recipe import Agent, Turns
from asyncrl.replay.group import Group

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def calculates(text: str) -> str:
    """Asks for a product, then says it."""
    if "<tool_response>" in text:
        return f"The answer is {text.rpartition('<tool_response>')[2].split()[0]}.{END}"
    return f'<tool_call>\n{{"name": "multiply", "arguments": {{"a": 6, "b": 7}}}}\n</tool_call>{END}'


async def unused(client: Any) -> None:
    raise AssertionError("the agent is a process")


def recipe_of(agent: Agent, folder: Path) -> Any:
    """A recipe, as far as agents are concerned."""
    return SimpleNamespace(
        agent=agent,
        turns=Turns(),
        name="run",
        model=SimpleNamespace(path="model"),
        verifying=SimpleNamespace(own_files=lambda: folder),
    )


async def play(agent: Agent, folder: Path, run: Played) -> Group:
    player = run.player
    kit = make_agent_kit(recipe_of(agent, folder), run.codec, hidden=[folder / "run"])
    assert kit is not None
    agents = kit.agents(player.recorder.generator, run.codec, player.shaping, player.waits, player.state)
    async with agents.endpoint:
        assert len([each async for each in agents.player.run(run.group)]) == len(run.group.trajectories)
    return run.group


@pytest.mark.parametrize("name", ["agent_calculator_urllib.py", "agent_calculator.py"])
async def test_a_program_of_the_users_becomes_a_trajectory_of_turns(name: str, tmp_path: Path) -> None:
    if "urllib" not in name:
        pytest.importorskip("openai", exc_type=ImportError)
        # It finds only at its first use whether what it needs itself is there.
        pytest.importorskip("jiter")
    async with agents_on(tmp_path, unused, calculates, samples=2) as run:
        group = await play(Agent(command=["python", name]), EXAMPLES, run)
        assert not group.scores, group.scores
        for trajectory in group.trajectories:
            assert len(trajectory.turns()) == 2 and not trajectory.branches
            assert run.codec.decode(trajectory.answer_tokens()) == "The answer is 42."


async def test_a_function_of_the_users_becomes_a_trajectory_and_may_judge_it(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(
        "async def run(task):\n"
        "    first = await task.say(task.messages)\n"
        "    last = await task.say([*task.messages, first, {'role': 'user', 'content': 'Sure?'}])\n"
        "    return 1.0 if '2' in last['content'] else 0.0\n"
    )
    agent = Agent(function=f"{tmp_path / 'agent.py'}:run", may_give_verdict=True)

    def counted(text: str) -> str:
        return f"turn {text.count('<|im_start|>assistant')}{END}"

    async with agents_on(tmp_path, unused, counted) as run:
        group = await play(agent, tmp_path, run)
        (score,) = group.scores.values()
        assert score.outcome == "correct" and len(group.trajectories[0].turns()) == 2


async def test_a_model_without_a_chat_template_is_refused(tmp_path: Path) -> None:
    async with agents_on(tmp_path, unused, calculates) as run:
        plain = dataclasses.replace(run, codec=make_chat_codec(tmp_path / "plain", has_template=False))
        with pytest.raises(InputError, match="chat template"):
            await play(Agent(command=["true"]), tmp_path, plain)


@pytest.mark.parametrize("verdict", ["trajectory", "branch"])
def test_the_recipe_says_whether_branches_are_judged_each(verdict: str) -> None:
    recipe = make_recipe(Path("m"), agent={"command": ["true"], "verdict": verdict})
    unused: Any = None
    parts: Any = SimpleNamespace(ended=unused, has_signal=unused)
    known: Any = SimpleNamespace(recipe=recipe, codec=unused)
    made = _make_completion(known, parts, unused, unused, unused, unused, parts)
    assert made.judges_branches == (verdict == "branch")
