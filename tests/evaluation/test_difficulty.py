"""Measured pass rates: a measurement that was broken off continues, and asks no row twice."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from fakes.records import make_score, make_task

from asyncrl.errors import InputError
from asyncrl.evaluation.difficulty import Measured, MeasuredFile, chance_of_signal, histogram, measure
from asyncrl.evaluation.evaluator import Evaluator
from asyncrl.evaluation.result import EvaluationFailed, GradedResponse
from asyncrl.records import Task


@dataclass
class Answers:
    """Answers as the evaluator does: task n is right in n of 4 samples, and the last sample is a fault."""

    asked: list[str] = field(default_factory=list)
    fails_at: str = ""

    async def answer(
        self, tasks: Sequence[Task], *, num_samples: int, is_greedy: bool
    ) -> list[list[GradedResponse]]:
        assert not is_greedy
        if self.fails_at in {task.task_id for task in tasks}:
            raise EvaluationFailed("no server is left")
        self.asked += [task.task_id for task in tasks]
        return [self._responses(task, num_samples) for task in tasks]

    def _responses(self, task: Task, num_samples: int) -> list[GradedResponse]:
        right = int(task.task_id.partition(":")[2])
        rewards: list[float | None] = [float(sample < right) for sample in range(num_samples - 1)]
        return [GradedResponse("", 1, (0,), make_score(reward)) for reward in [*rewards, None]]


def measured(path: Path, answers: Answers, settings: dict[str, Any], num_tasks: int = 5) -> MeasuredFile:
    file = MeasuredFile.open(path, settings)
    told: list[int] = []
    try:
        asyncio.run(
            measure(
                [make_task(n) for n in range(num_tasks)],
                cast(Evaluator, answers),
                file,
                num_samples=5,
                rows_at_once=2,
                told=told.append,
            )
        )
    finally:
        assert sum(told) == len(answers.asked)
    return file


def test_a_fault_is_no_sample_and_rows_are_measured_in_their_order(tmp_path: Path) -> None:
    answers = Answers()
    found = measured(tmp_path / "f", answers, {"n": 5}).found
    assert found == {f"train:{n}": Measured(4, n / 4) for n in range(5)}
    assert answers.asked == [f"train:{n}" for n in range(5)]


def test_a_measurement_that_was_broken_off_continues(tmp_path: Path) -> None:
    path = tmp_path / "f"
    with pytest.raises(EvaluationFailed):
        measured(path, Answers(fails_at="train:3"), {"n": 5})
    # As a kill in the middle of a line leaves it.
    path.write_text(path.read_text() + '{"task_id": "train:2", "num_gr')
    answers = Answers()
    found = measured(path, answers, {"n": 5}).found
    assert answers.asked == ["train:2", "train:3", "train:4"]
    assert found == {f"train:{n}": Measured(4, n / 4) for n in range(5)}
    assert MeasuredFile.open(path, {"n": 5}).found == found


def test_a_measurement_of_other_settings_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "f"
    measured(path, Answers(), {"n": 5})
    with pytest.raises(InputError, match="with another model, other rows or other settings. Remove it"):
        MeasuredFile.open(path, {"n": 6})
    path.write_text(json.dumps({"task_id": 3}) + "\n")
    with pytest.raises(InputError, match="is no file of a measurement"):
        MeasuredFile.open(path, {"n": 5})
    with pytest.raises(InputError, match="could not be written: No such file.* --out"):
        MeasuredFile.open(tmp_path / "no" / "f", {"n": 5})


def test_the_histogram_tells_never_and_always_apart_from_nearly() -> None:
    found = dict(histogram([0.0, 0.0, 0.01, 0.1, 0.95, 0.999, 1.0]))
    assert (found["0"], found["0.0 to 0.1"], found["0.1 to 0.2"], found["0.9 to 1.0"], found["1"]) == (
        *(2, 1, 1, 2),
        1,
    )
    assert sum(found.values()) == 7
    assert chance_of_signal([0.0, 0.5, 1.0], 2) == pytest.approx(1 / 6)
