"""Statements of an evaluation about its answers; the numbers come from observe/metrics/estimates.py."""

import asyncio
import contextlib
import dataclasses
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fakes.engine import FakeEngine
from fakes.model_folder import write_tokenizer
from fakes.process_owner import FakeProcesses
from fakes.records import make_score, make_task

from asyncrl.errors import ServerError
from asyncrl.evaluation.evaluator import Evaluator
from asyncrl.evaluation.result import EvaluationFailed
from asyncrl.loops import Waits
from asyncrl.model.tokenizer import TextCodec
from asyncrl.records import SamplingParams, Score
from asyncrl.serving.fleet import Fleet
from asyncrl.serving.join import FleetSettings
from asyncrl.serving.sglang.http import new_session


async def greedy(asked: Evaluator, tasks: list[Any]) -> dict[str, Any]:
    """The numbers of the most likely answers."""
    return (await asked.evaluate(tasks, is_greedy=True, num_samples=0)).numbers()


class Reader:
    """A grader that keeps what it was given to read."""

    def __init__(self):
        self.texts = []
        self.turns = []
        self.score = make_score()

    async def grade(self, task, text, *, num_turns):
        self.texts.append(text)
        self.turns.append(num_turns)
        return self.score


async def test_an_evaluation_without_one_graded_answer_is_an_error_that_says_why(tmp_path: Path):
    async with evaluator_on(FakeEngine(), tmp_path, FakeProcesses()) as evaluation:
        evaluation.grader.score = Score("fault", None, None, None, "The sandbox failed: no isolation.", 0.0)
        with pytest.raises(EvaluationFailed, match="All 3 verifications .*no isolation.* verifying"):
            await greedy(evaluation, list(map(make_task, (1, 2, 3))))


async def test_an_evaluation_with_graded_answers_has_its_numbers(tmp_path: Path):
    async with evaluator_on(FakeEngine(), tmp_path, FakeProcesses()) as evaluation:
        row = await greedy(evaluation, list(map(make_task, (1, 2, 3))))
    assert (row["greedy_accuracy"], row["num_faults"]) == (1.0, 0)
    assert not any("by_source" in name for name in row)


async def test_an_evaluation_of_two_sources_has_the_numbers_of_each(tmp_path: Path):
    other = dataclasses.replace(make_task(2), task_id="other:2")
    async with evaluator_on(FakeEngine(), tmp_path, FakeProcesses()) as evaluation:
        row = await greedy(evaluation, [make_task(1), other])
    assert (row["greedy_accuracy_by_source_train"], row["greedy_accuracy_by_source_other"]) == (1.0, 1.0)


@contextlib.asynccontextmanager
async def evaluator_on(
    engine: FakeEngine, folder: Path, processes: FakeProcesses, *, max_new_tokens: int = 8
) -> AsyncIterator[Evaluator]:
    """Of an engine without a trainer."""
    codec = TextCodec(write_tokenizer(folder))
    async with engine, new_session() as session:
        engine.version = "0"
        waits = Waits()
        fleet = Fleet(
            [engine.url],
            FleetSettings(max_running_requests=32),
            session=session,
            waits=waits,
            processes=processes,
        )
        fleet.members.serve_fixed(0)
        sampling = SamplingParams(1.0, max_new_tokens, codec.stop_token_ids)
        yield Evaluator(fleet, waits, Reader(), codec, sampling, 5000, "run", itertools.count())
        await fleet.members.close()


async def test_responses_that_reach_their_limit_are_cut(tmp_path: Path):
    async with evaluator_on(FakeEngine(num_tokens=50), tmp_path, FakeProcesses()) as evaluation:
        assert (await greedy(evaluation, [make_task(1)]))["cut_share"] == 1.0
    async with evaluator_on(FakeEngine(num_tokens=5), tmp_path, FakeProcesses()) as evaluation:
        assert (await greedy(evaluation, [make_task(1)]))["cut_share"] == 0.0


async def test_a_server_that_dies_is_started_again_and_asked_again(tmp_path: Path):
    engine = FakeEngine()
    engine.break_streams, engine.is_ready = 1, False
    restarted = []

    async def start(url: str) -> None:
        restarted.append(url)
        engine.is_ready = True

    async with evaluator_on(engine, tmp_path, FakeProcesses(start)) as evaluation:
        row = await greedy(evaluation, [make_task(1), make_task(2)])
        assert (row["num_tasks"], restarted) == (2, [engine.url])


async def test_an_evaluation_without_a_server_that_may_come_back_says_why(tmp_path: Path):
    engine = FakeEngine()
    engine.break_streams, engine.is_ready = 1, False

    async def refuse(url: str) -> None:
        raise ServerError("server 0 ended with exit code 1. Its last lines: no memory")

    async with evaluator_on(engine, tmp_path, FakeProcesses(refuse)) as evaluation:
        with pytest.raises(EvaluationFailed, match="no server is left to answer: .*last lines: no memory"):
            await greedy(evaluation, [make_task(1)])


async def test_a_server_gets_no_more_requests_than_it_runs(tmp_path: Path):
    engine = FakeEngine()
    async with evaluator_on(engine, tmp_path, FakeProcesses()) as evaluation:
        graded: list[int] = []
        watched = dataclasses.replace(evaluation, on_graded=graded.append)
        engine.hold()
        asked = asyncio.create_task(watched.answer([make_task(1)], num_samples=80, is_greedy=False))
        while not engine.bodies:
            await asyncio.sleep(0)
        assert [len(body["rid"]) for body in engine.bodies] == [32] and not graded
        engine.release()
        ((*answers,),) = await asked
        assert (len(answers), sum(graded)) == (80, 80)
        assert [len(body["rid"]) for body in engine.bodies] == [32, 32, 16]


async def test_a_completion_is_graded_with_its_prompt(tmp_path: Path):
    engine = FakeEngine()
    async with evaluator_on(engine, tmp_path, FakeProcesses()) as evaluation:
        engine.script = list(evaluation.codec.encode("2" * 50))
        await greedy(dataclasses.replace(evaluation, is_completion=True), [make_task(1)])
        (text,) = evaluation.grader.texts
        assert text.startswith("1+1=2222")
