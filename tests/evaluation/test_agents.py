"""Evaluations by agents: sampling, verdicts, limits, faults, and their end."""

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Any

import psutil
import pytest
from fakes.agents import Client, CoroutinePrograms
from fakes.chat_codec import END
from fakes.evaluated_agents import Evaluated, evaluator_on
from fakes.records import make_task

from asyncrl.evaluation.result import EvaluationFailed, GradedResponse
from asyncrl.recipe import Agent
from asyncrl.rollout.agents.process import ProcessPrograms

ASKED = {"role": "user", "content": "What is 6 times 7?"}
SURE = {"role": "user", "content": "Sure?"}
EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def answers(text: str) -> str:
    return f"It is 42.{END}" if "Sure?" in text else f"Forty or so.{END}"


async def asks_twice(client: Client) -> None:
    first = await client.say([ASKED], temperature=0.3)
    await client.say([ASKED, first, SURE])


async def asked(
    run: Evaluated, *, tasks: int = 1, samples: int = 1, greedy: bool = True
) -> list[GradedResponse]:
    """The answers to all tasks, one after the other."""
    found = await run.evaluator.answer(
        [make_task(n) for n in range(tasks)], num_samples=samples, is_greedy=greedy
    )
    assert [len(each) for each in found] == [samples] * tasks
    return [answer for each in found for answer in each]


async def test_the_agent_plays_each_sample_and_the_verifier_judges_its_last_reply(tmp_path: Path) -> None:
    async with evaluator_on(tmp_path, asks_twice, answers) as run:
        found = await asked(run, tasks=3)
        assert run.grader.texts == ["It is 42."] * 3
        assert [answer.score.correctness for answer in found] == [1.0] * 3
        for conversation, num_turns in run.grader.told:
            assert conversation.turns == ("Forty or so.", "It is 42.") and num_turns == 2
        assert {(answer.num_turns, answer.num_calls, answer.is_cut) for answer in found} == {(2, None, False)}
        assert found[0].text.count("Forty or so.") == 1 and "Sure?" in found[0].text
        assert run.programs.num_started == sum(run.graded) == 3
        assert run.evaluator.num_streamed == sum(answer.num_tokens for answer in found)
        assert run.evaluator.fleet.router.num_in_flight == 0


@pytest.mark.parametrize(("greedy", "temperature"), [(True, 0.0), (False, 0.7)])
async def test_the_evaluations_sampling_counts_and_not_the_programs(
    tmp_path: Path, greedy: bool, temperature: float
) -> None:
    async with evaluator_on(tmp_path, asks_twice, answers) as run:
        await asked(run, samples=1 if greedy else 4, greedy=greedy)
        assert len(run.engine.bodies) == (2 if greedy else 8)
        found = {body["sampling_params"][0]["temperature"] for body in run.engine.bodies}
        assert found == {temperature}


async def test_each_of_k_samples_has_a_program_and_a_key_of_its_own(tmp_path: Path) -> None:
    async with evaluator_on(tmp_path, asks_twice, answers, max_agents=3) as run:
        result = await run.evaluator.evaluate([make_task(1), make_task(2)], is_greedy=True, num_samples=8)
        assert isinstance(run.programs, CoroutinePrograms)
        assert len(set(run.programs.keys)) == 2 * (8 + 1)
        row = result.numbers()
        assert (row["greedy_accuracy"], row["pass_at_k"], row["num_faults"]) == (1.0, 1.0, 0)
        assert row["turns_mean"] == 2.0 and "tool_use_share" not in row


async def test_a_program_that_keeps_crashing_is_left_out_and_counted(tmp_path: Path) -> None:
    count = iter(range(100))

    async def crashes(client: Client) -> None:
        if next(count) < 2:
            raise RuntimeError("no network")
        await asks_twice(client)

    async with evaluator_on(tmp_path, crashes, answers, max_agents=1) as run:
        result = await run.evaluator.evaluate([make_task(1), make_task(2)], is_greedy=True, num_samples=0)
        assert result.scores["greedy"] == [None, 1.0]
        row = result.numbers()
        assert (row["greedy_accuracy"], row["num_faults"], row["num_tasks"]) == (1.0, 1, 2)


async def test_where_every_program_crashes_the_evaluation_says_why(tmp_path: Path) -> None:
    async def crashes(client: Client) -> None:
        raise RuntimeError("no network")

    async with evaluator_on(tmp_path, crashes, answers) as run:
        with pytest.raises(EvaluationFailed, match="agent: it ended with exit code 1. no network"):
            await asked(run, tasks=2)


async def test_a_program_that_works_by_itself_has_time_until_its_limit(tmp_path: Path) -> None:
    seen: list[bool] = []

    async def looks(client: Client) -> None:
        seen.append(run.evaluator.is_answering_in_time())
        run.engine.hold()
        call = asyncio.create_task(client.say([ASKED]))
        while run.engine.num_running == 0:
            await asyncio.sleep(0)
        # The rest is the server's time.
        seen.append(run.evaluator.is_answering_in_time())
        run.engine.release()
        await call

    async with evaluator_on(tmp_path, looks, answers) as run:
        await asked(run)
        assert seen == [True, False] and not run.evaluator.is_answering_in_time()


async def test_tokens_of_a_rewritten_history_count_and_the_last_conversation_is_shown(tmp_path: Path) -> None:
    async def rewrites(client: Client) -> None:
        await client.say([ASKED])
        await client.say([{"role": "user", "content": "In short. Sure?"}])

    async with evaluator_on(tmp_path, rewrites, answers) as run:
        (answer,) = await asked(run)
        assert answer.text == f"It is 42.{END}" and answer.num_turns == 2
        assert answer.num_tokens == run.evaluator.num_streamed > len(answer.text) - len(END)


async def test_servers_that_keep_failing_end_the_evaluation(tmp_path: Path) -> None:
    async with evaluator_on(tmp_path, asks_twice, answers) as run:
        run.engine.break_streams = 100
        with pytest.raises(EvaluationFailed, match="the evaluation of"):
            await asked(run, tasks=2)


async def test_a_trainer_that_goes_back_holds_no_conversation_up(tmp_path: Path) -> None:
    async with evaluator_on(tmp_path, asks_twice, answers) as run:
        (server,) = run.evaluator.fleet.members.servers.values()
        server.version, run.engine.version = 3, "3"

        async def goes_back(client: Client) -> None:
            first = await client.say([ASKED])
            server.version, run.engine.version = 1, "1"
            await client.say([ASKED, first, SURE])

        assert isinstance(run.programs, CoroutinePrograms)
        run.programs.agent = goes_back
        (answer,) = await asked(run)
        assert answer.versions == (3, 1)


async def test_an_evaluation_that_is_cancelled_leaves_no_program_and_no_endpoint(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, subprocess, time\n"
        "child = subprocess.Popen(['sleep', '1000'])\n"
        "pathlib.Path(os.environ['MARKS'], str(os.getpid())).write_text(\n"
        "    f\"{child.pid} {os.environ['OPENAI_BASE_URL']}\")\n"
        "time.sleep(1000)\n"
    )
    (marks := tmp_path / "marks").mkdir()
    programs = ProcessPrograms(["python", "-c", code], Agent(environment={"MARKS": str(marks)}))
    async with evaluator_on(tmp_path, programs, answers) as run:
        work = asyncio.create_task(asked(run, tasks=2))
        while len(texts := [path.read_text() for path in marks.iterdir()]) < 2 or not all(texts):
            await asyncio.sleep(0.01)
        family = [int(path.name) for path in marks.iterdir()] + [int(text.split()[0]) for text in texts]
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        gone, left = psutil.wait_procs([psutil.Process(pid) for pid in family if psutil.pid_exists(pid)], 60)
        assert not left, left
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", int(texts[0].rpartition(":")[2].partition("/")[0]))


async def test_a_program_of_the_users_is_evaluated_as_a_process(tmp_path: Path) -> None:
    def calculates(text: str) -> str:
        if "<tool_response>" in text:
            return f"The answer is {text.rpartition('<tool_response>')[2].split()[0]}.{END}"
        call = {"name": "multiply", "arguments": {"a": 6, "b": 7}}
        return f"<tool_call>\n{json.dumps(call)}\n</tool_call>{END}"

    programs = ProcessPrograms(["python", str(EXAMPLES / "agent_calculator_urllib.py")])
    async with evaluator_on(tmp_path, programs, calculates) as run:
        (answer,) = await asked(run)
        assert answer.score.correctness == 1.0 and run.grader.texts == ["The answer is 42."]
        assert not run.evaluator.waits.pending


async def test_evaluations_side_by_side_share_the_places_of_programs(tmp_path: Path) -> None:
    most: Any = [0, 0]

    async def counts(client: Client) -> None:
        most[0] += 1
        most[1] = max(most)
        await asks_twice(client)
        most[0] -= 1

    async with evaluator_on(tmp_path, counts, answers, max_agents=2) as run:
        other = dataclasses.replace(run.evaluator)
        await asyncio.gather(asked(run, tasks=4), asked(dataclasses.replace(run, evaluator=other), tasks=4))
        assert most == [0, 2]
