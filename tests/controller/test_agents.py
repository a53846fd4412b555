"""Real agents, as processes, against the endpoint of a run on a fake engine."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes.agents import Played, agents_on
from fakes.chat_codec import END
from fakes.recipes import make_recipe

from asyncrl.controller.completion import make_completion
from asyncrl.recipe import Agent, Turns
from asyncrl.replay.group import Group
from asyncrl.rollout.agents.kit import make_agent_kit
from asyncrl.rollout.judged_groups import GroupVerdicts

LONG_CONTEXT = 32_000
"""The library's instructions alone are 5,000 characters, each of which is a token here."""
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
    async with agents:
        assert len([each async for each in agents.player.run(run.group)]) == len(run.group.trajectories)
    return run.group


@pytest.mark.parametrize("name", ["agent_calculator_urllib.py", "agent_calculator.py"])
async def test_a_program_of_the_users_becomes_a_trajectory_of_turns(name: str, tmp_path: Path) -> None:
    if "urllib" not in name:
        # OpenAI's client finds only at its first use that it lacks it.
        pytest.importorskip("jiter", reason="make setup AGENTS=1")
    async with agents_on(tmp_path, unused, calculates, samples=2) as run:
        group = await play(Agent(command=["python", name]), EXAMPLES, run)
        assert not group.scores, group.scores
        for trajectory in group.trajectories:
            assert len(trajectory.turns()) == 2 and not trajectory.branches
            assert run.codec.decode(trajectory.answer_tokens()) == "The answer is 42."


async def test_an_agent_of_a_library_that_says_its_calls_in_its_own_words_becomes_branches(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("smolagents", reason="make setup AGENTS=1")

    def answers(text: str) -> str:
        if "42" not in text.rpartition("<|im_start|>user")[2]:
            return calculates("")
        return f'<tool_call>\n{{"name": "final_answer", "arguments": {{"answer": 42}}}}\n</tool_call>{END}'

    async with agents_on(tmp_path, unused, answers, context_tokens=LONG_CONTEXT) as run:
        group = await play(Agent(command=["python", "agent_smolagents.py"]), EXAMPLES, run)
        (trajectory,) = group.trajectories
        assert not group.scores, group.scores
        # It shows the model its own calls as "Calling tools: ...".
        assert [len(line.turns()) for line in (trajectory, *trajectory.branches)] == [1, 1]
        assert "Calling tools:" in run.text(trajectory.branches[0])
        assert '"answer": 42' in run.codec.decode(trajectory.answer_tokens())
    assert sum("asks for tool_choice" in line for line in caplog.messages) == 1


@pytest.mark.parametrize("per_process", [1, 8])
async def test_a_function_of_the_users_becomes_a_trajectory_and_may_judge_it(
    per_process: int, tmp_path: Path
) -> None:
    (tmp_path / "agent.py").write_text(
        "async def run(task):\n"
        "    first = await task.say(task.messages)\n"
        "    last = await task.say([*task.messages, first, {'role': 'user', 'content': 'Sure?'}])\n"
        "    return 1.0 if '2' in last['content'] else 0.0\n"
    )
    agent = Agent(function=f"{tmp_path / 'agent.py'}:run", may_give_verdict=True)
    agent = agent.model_copy(update={"functions_per_process": per_process})

    def counted(text: str) -> str:
        return f"turn {text.count('<|im_start|>assistant')}{END}"

    async with agents_on(tmp_path, unused, counted) as run:
        group = await play(agent, tmp_path, run)
        (score,) = group.scores.values()
        assert score.outcome == "correct" and len(group.trajectories[0].turns()) == 2


async def test_a_function_plays_two_roles_and_scores_each(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(
        "async def run(task):\n"
        "    said = await task.say(task.messages, model='proposer')\n"
        "    await task.say([{'role': 'user', 'content': said['content'] + '?'}], model='checker')\n"
        "    return {'proposer': 1, 'checker': 0.25}\n"
    )
    name = f"{tmp_path / 'agent.py'}:run"
    agent = Agent(
        function=name, functions_per_process=8, may_give_verdict=True, roles=["proposer", "checker"]
    )
    async with agents_on(tmp_path, unused, lambda text: f"so{END}") as run:
        group = await play(agent, tmp_path, run)
        (score,) = group.scores.values()
        assert score.scores == {"proposer": 1.0, "checker": 0.25} and score.correctness == 0.625
        assert [line.role for line in group.trajectories[0].lines()] == ["proposer", "checker"]


@pytest.mark.parametrize("verdict", ["trajectory", "branch"])
def test_the_recipe_says_whether_branches_are_judged_each(verdict: str) -> None:
    recipe = make_recipe(Path("m"), agent={"command": ["true"], "verdict": verdict})
    unused: Any = None
    parts: Any = SimpleNamespace(ended=unused, has_signal=unused)
    known: Any = SimpleNamespace(recipe=recipe, codec=unused)
    made = make_completion(known, parts, unused, unused, unused, unused, parts, None)
    assert isinstance(made.verdicts, GroupVerdicts)
    assert made.verdicts.judges_branches == (verdict == "branch")
