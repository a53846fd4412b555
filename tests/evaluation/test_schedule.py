"""Benchmarks of a run: before and after training, each by itself."""

import itertools
import logging
from pathlib import Path
from typing import Any

import pytest
from fakes.notebook import Notebook

from asyncrl.evaluation.result import EvaluationFailed, Result
from asyncrl.evaluation.run import Evaluator
from asyncrl.evaluation.schedule import HeldOutSchedule
from asyncrl.loops import Loops
from asyncrl.recipe import Evaluation
from asyncrl.run_state import RunState
from asyncrl.serving.publication import Publication
from asyncrl.waits import Waits


class FixedExam:
    """Its result is known, or it fails."""

    num_responses = 4

    def __init__(self, name: str, failure: str | None = None) -> None:
        self.name, self._failure = name, failure

    def evaluator(self, evaluator: Evaluator) -> Evaluator:
        return evaluator

    def describe(self) -> dict[str, Any]:
        return {"benchmark": self.name, "template": "r1"}

    async def give(self, evaluator: Evaluator) -> Result:
        if self._failure is not None:
            raise EvaluationFailed(self._failure)
        return Result(None, None, {"greedy": [1.0]})


async def test_benchmarks_are_measured_before_and_after_and_one_that_fails_stops_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    waits, notebook = Waits(), Notebook()
    evaluator = Evaluator(None, waits, None, None, None, 8, "run", itertools.count())
    exams = [FixedExam("first", "no verdicts"), FixedExam("second")]
    async with Loops(waits, dict) as loops:
        state = RunState(waits)
        schedule = HeldOutSchedule(
            Evaluation(), [], exams, "r1", evaluator, None, waits, state, loops, notebook
        )
        for version, when in ((0, "before"), (2, "during"), (4, "after")):
            with caplog.at_level(logging.WARNING):
                await schedule.wait(Publication(version, tmp_path, {}), when)
    assert [(row["step"], row["when"], row["benchmark"], row["template"]) for row in notebook.benchmarks] == [
        (0, "before", "second", "r1"),
        (4, "after", "second", "r1"),
    ]
    assert notebook.evaluations == []
    assert "benchmark first before training of version 0 failed: no verdicts" in caplog.text
