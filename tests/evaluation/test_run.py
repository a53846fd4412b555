"""What an evaluation says about its answers; the numbers themselves come from observe/estimates.py."""

import itertools

import pytest

from asyncrl.evaluation.run import Answer, EvaluationFailed, Evaluator
from asyncrl.records import Score


class OneAnswerEach(Evaluator):
    """Answers without a server."""

    outcome = "fault"

    async def _ask_with_retries(self, tasks, is_greedy):
        correctness = None if self.outcome == "fault" else 1.0
        score = Score(
            self.outcome, correctness, correctness, None, "The sandbox failed: no isolation.", 0.0, ""
        )
        return [Answer("", 1, (0,), score) for _ in tasks]


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
