"""Evaluations of conversations: environments, tools, rendered histories, faults and limits."""

import asyncio
import dataclasses
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes.engine import STOP, FakeEngine
from fakes.episodes import OBSERVED, FakeEpisodes, conversations
from fakes.evaluated_agents import TextGrader
from fakes.fleets import fleet_on
from fakes.records import make_score
from rollout.test_rendered_history import END, HEADER, asked_by, run_of, thinking

from asyncrl.evaluation.evaluator import Evaluator
from asyncrl.loops import Waits
from asyncrl.model.token_text import StopStrings
from asyncrl.records import EnvironmentSpec, SamplingParams, Task, VerifierSpec
from asyncrl.serving.sglang.http import new_session
from asyncrl.turns.environment import End, Observation
from asyncrl.turns.episode import EnvironmentFault, TurnLimit

TURN = [30, 31, STOP]
WORDS = SimpleNamespace(
    decode=lambda tokens: " ".join(map(str, tokens)),
    exact_text=lambda tokens: " ".join(map(str, tokens)),
    stop=StopStrings(),
)
"""Text of tokens: their numbers."""


def tasks(count: int) -> list[Task]:
    spec, game = VerifierSpec("math"), EnvironmentSpec("game")
    return [Task(f"h:{n}", "1+1=", (7, 8, 9), "2", spec, game, row={"n": n}) for n in range(count)]


@asynccontextmanager
async def evaluator_on(episodes: FakeEpisodes, **limits: Any) -> AsyncIterator[tuple[Evaluator, FakeEngine]]:
    """An engine that writes the same turn again and again."""
    max_new_tokens = limits.pop("max_new_tokens", 100)
    async with FakeEngine() as engine, new_session() as session:
        engine.version, engine.answers = "0", lambda prefix: TURN
        waits = Waits()
        yield (
            Evaluator(
                *(fleet_on(engine, session, waits), waits, TextGrader(), WORDS),  # type: ignore[arg-type]
                SamplingParams(0.7, max_new_tokens, (STOP,)),
                200,
                "run",
                itertools.count(),
                conversations=conversations(episodes, **limits),
            ),
            engine,
        )


def three_turns(turn: int, text: str) -> Observation | End:
    return End(1.0, "guessed") if turn == 2 else Observation(f"not {text}")


async def test_an_environment_answers_the_turns_and_gives_the_verdict(tmp_path: Path) -> None:
    episodes = FakeEpisodes(three_turns)
    async with evaluator_on(episodes) as (evaluator, engine):
        ((answer,),) = await evaluator.answer(tasks(1), num_samples=1, is_greedy=True)
        assert answer.score.outcome == "correct" and answer.num_turns == 3 and answer.num_tokens == 9
        assert engine.bodies[1]["input_ids"][0] == [7, 8, 9, *TURN, *OBSERVED]
        (episode,) = episodes.opened
        assert episode.row == {"n": 0} and episode.is_closed
        assert not evaluator.grader.texts  # type: ignore[attr-defined]


async def test_pass_at_k_plays_each_sample_in_an_episode_of_its_own(tmp_path: Path) -> None:
    outcomes = itertools.cycle([1.0, 0.0, 0.0, 0.0])

    def once(turn: int, text: str) -> Observation | End:
        return End(next(outcomes)) if turn else Observation("again")

    episodes = FakeEpisodes(once)
    async with evaluator_on(episodes) as (evaluator, engine):
        result = await evaluator.evaluate(tasks(1), is_greedy=False, num_samples=4)
        row = result.numbers()
        assert (row["avg_at_k"], row["pass_at_k"], row["turns_mean"]) == (0.25, 1.0, 2.0)
        assert len(episodes.opened) == 4 and all(episode.is_closed for episode in episodes.opened)
        assert {body["sampling_params"][0]["temperature"] for body in engine.bodies} == {0.7}


async def test_without_the_environments_verdict_the_rows_verifier_judges_the_last_turn(
    tmp_path: Path,
) -> None:
    def ends(turn: int, text: str) -> Observation | End:
        return End(None) if turn else Observation("again")

    async with evaluator_on(FakeEpisodes(ends)) as (evaluator, _):
        await evaluator.answer(tasks(1), num_samples=1, is_greedy=True)
        grader: Any = evaluator.grader
        ((told, num_turns),) = grader.told
        assert grader.texts == ["30 31 1"] and num_turns == 2
        assert told.observations == (({"role": "user", "content": "again"},),)


async def test_a_fault_of_an_environment_is_left_out_and_its_limit_is_wrong(tmp_path: Path) -> None:
    def fails(turn: int, text: str) -> Observation | End:
        raise EnvironmentFault("it raised") if next(count) == 0 else TurnLimit("too slow")

    count = itertools.count()
    async with evaluator_on(FakeEpisodes(fails), num_fault_retries=0) as (evaluator, _):
        result = await evaluator.evaluate(tasks(2), is_greedy=True, num_samples=0)
        assert sorted(each.score.outcome for (each,) in result.greedy_responses) == ["fault", "wrong"]
        row = result.numbers()
        assert (row["num_faults"], row["greedy_accuracy"]) == (1, 0.0)


async def test_a_slow_tool_keeps_no_place_on_a_server_and_a_cancelled_evaluation_closes_it(
    tmp_path: Path,
) -> None:
    episodes = FakeEpisodes(three_turns)
    episodes.may_answer.clear()
    async with evaluator_on(episodes) as (evaluator, _):
        # The fleet takes 8 requests at once.
        work = asyncio.create_task(evaluator.answer(tasks(20), num_samples=1, is_greedy=True))
        while sum(len(episode.texts) for episode in episodes.opened) < 20:
            await asyncio.sleep(0)
        assert evaluator.fleet.router.num_in_flight == 0 and evaluator.is_answering_in_time()
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert not evaluator.is_answering_in_time()
        assert all(episode.is_closed for episode in episodes.opened)


class Correct:
    async def grade(self, *_: object) -> object:
        return make_score()


@pytest.mark.parametrize("family", ["qwen3", "smollm2"])
async def test_an_evaluation_reads_the_contexts_of_training(tmp_path: Path, family: str) -> None:
    async with run_of(tmp_path, family, samples=1) as run:
        (trained,) = await run.play()
        num_asked = len(run.engine.bodies)
        generator = run.player.generator
        evaluator = Evaluator(
            *(generator.fleet, generator.waits, Correct(), run.codec),  # type: ignore[arg-type]
            *(SamplingParams(1.0, 1000, run.codec.stop_token_ids), 2000, "run", itertools.count()),
            conversations=dataclasses.replace(run.player.conversations),
        )
        ((answer,),) = await evaluator.answer([asked_by(run.codec)], num_samples=1, is_greedy=True)
        asked = [body["input_ids"][0] for body in run.engine.bodies]
        assert asked[num_asked:] == asked[:num_asked]
        assert (answer.num_tokens, answer.num_turns) == (trained.num_sampled_in_all(), 3)
        # For people, the conversation as it was sampled.
        said = [f"{thinking(n)}{END}\n<|im_start|>user\nnot {n}{END}\n{HEADER}" for n in range(2)]
        assert answer.text == f"{said[0]}{said[1]}{thinking(2)}{END}"
