"""What an evaluation says about its answers; the numbers themselves come from observe/estimates.py."""

import itertools
from pathlib import Path

import pytest
from fakes.engine import FakeEngine
from fakes.fleets import restart
from fakes.model_folder import write_tokenizer
from fakes.records import make_score, make_task

from asyncrl.evaluation.result import EvaluationFailed, GradedResponse
from asyncrl.evaluation.run import Evaluator
from asyncrl.recipe import Rollout
from asyncrl.records import SamplingParams, Score
from asyncrl.rollout.text import TextCodec
from asyncrl.serving.fleet import Fleet
from asyncrl.serving.sglang import new_session
from asyncrl.waits import Waits


class OneAnswerEach(Evaluator):
    """Answers without a server."""

    outcome = "fault"

    def _num_requests(self):
        return 1

    async def _ask_with_retries(self, tasks, is_greedy):
        correctness = None if self.outcome == "fault" else 1.0
        score = Score(
            self.outcome, correctness, correctness, None, "The sandbox failed: no isolation.", 0.0, ""
        )
        return [GradedResponse("", 1, (0,), score) for _ in tasks]


def evaluator():
    return OneAnswerEach(None, None, None, None, None, 8, 1.0, "run", itertools.count())


async def test_an_evaluation_without_one_graded_answer_is_an_error_that_says_why():
    with pytest.raises(EvaluationFailed, match="All 3 verifications .*no isolation.* verifying"):
        await evaluator().greedy([1, 2, 3])


async def test_an_evaluation_with_graded_answers_has_its_numbers():
    right = evaluator()
    right.outcome = "correct"
    row = await right.greedy([1, 2, 3])
    assert (row["greedy_accuracy"], row["num_faults"]) == (1.0, 0)


class Reader:
    """A grader that keeps what it was given to read."""

    def __init__(self):
        self.texts = []

    async def grade(self, task, text):
        self.texts.append(text)
        return make_score()


@pytest.mark.parametrize("confirms_chunks", [True, False])
async def test_held_out_answers_end_with_the_stop_string(tmp_path: Path, confirms_chunks: bool):
    codec, reader = TextCodec(write_tokenizer(tmp_path), rollout=Rollout(stop=[";;q"])), Reader()
    engine = FakeEngine(num_tokens=5000, chunk_tokens=2, confirms_chunks=confirms_chunks)
    async with engine, new_session() as session:
        engine.version, engine.script = "0", list(codec.encode("12+3=15;;question" + "z" * 5000))
        waits = Waits()
        fleet = Fleet([engine.url], session=session, waits=waits, max_running_requests=8, restart=restart)
        fleet.serve_fixed(0)
        sampling = SamplingParams(1.0, 4000, codec.stop_token_ids)
        evaluation = Evaluator(fleet, waits, reader, codec, sampling, 5000, 30.0, "run", itertools.count())
        row = await evaluation.greedy([make_task(1), make_task(2)])
        assert reader.texts == ["12+3=15;;q"] * 2
        assert (row["response_tokens_mean"], row["version_min"], row["version_max"]) == (10, 0, 0)
        # The server was told: it did not write to the limit.
        assert evaluation.num_streamed < 2 * 4000
        assert fleet.num_running() == 0
