"""Evaluations of a run: what the observer hears, what the journal keeps, each by itself."""

import itertools
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fakes.notebook import Notebook
from fakes.records import make_score, make_task

from asyncrl.evaluation.evaluator import Evaluator
from asyncrl.evaluation.result import EvaluationFailed, GradedResponse, Result
from asyncrl.evaluation.schedule import HeldOutSchedule
from asyncrl.journal.evaluations import Answer, read_answers, read_prompts, read_texts
from asyncrl.journal.starts import record_start
from asyncrl.journal.writer import Journal
from asyncrl.loops import RunPhase, RunTasks, Waits
from asyncrl.observe.terminal import stage
from asyncrl.recipe import Evaluation
from asyncrl.records import SamplingParams, Task
from asyncrl.serving.publication import Publication

TASKS = [make_task(1), make_task(2)]


class FixedSet:
    """Its result is known, or it fails."""

    num_responses = 4
    tasks = TASKS

    def __init__(self, name: str, failure: str | None = None, every_steps: int = 0) -> None:
        self.name, self._failure, self._every_steps = name, failure, every_steps

    def is_due(self, version: int) -> bool:
        return self._every_steps > 0 and version % self._every_steps == 0

    def evaluator(self, evaluator: Evaluator) -> Evaluator:
        return evaluator

    def describe(self) -> dict[str, Any]:
        return {"benchmark": self.name, "template": "r1"}

    async def measure(self, evaluator: Evaluator) -> Result:
        if self._failure is not None:
            raise EvaluationFailed(self._failure)
        groups = [[GradedResponse("no", 3, (0,), make_score(0.0))] for _ in TASKS]
        return Result(None, None, {"greedy": [0.0, 0.0]}, groups)


@dataclass
class Scripted(Evaluator):
    """Answers without a server; the rewards of the most likely answers are the test's."""

    rewards: Sequence[float | None] = ()

    async def answer(
        self, tasks: Sequence[Task], *, num_samples: int, is_greedy: bool
    ) -> list[list[GradedResponse]]:
        rewards = self.rewards if is_greedy else [1.0, 0.0]
        for _ in range(num_samples * len(tasks)):
            self.num_streamed += 4
            self.on_graded(1)
        return [
            [
                GradedResponse(f"to {task.task_id}", 4, (0,), make_score(reward), reward is None)
                for _ in range(num_samples)
            ]
            for task, reward in zip(tasks, rewards, strict=True)
        ]


def evaluator(waits: Waits) -> Scripted:
    sampling = SamplingParams(1.0, 8, (1,), top_p=0.9)
    return Scripted(None, waits, None, None, sampling, 8, "run", itertools.count())


@asynccontextmanager
async def schedule_of(
    journal: Journal, notebook: Notebook, eval_sets: list[FixedSet], tasks: list[Task]
) -> AsyncIterator[tuple[HeldOutSchedule, Scripted]]:
    waits = Waits()
    asked = evaluator(waits)
    async with RunTasks(waits, dict) as loops:
        state, section = RunPhase(waits), Evaluation(samples_per_task=2, every_steps=2)
        yield (
            HeldOutSchedule(
                section, tasks, eval_sets, "r1", asked, None, waits, state, loops, journal, notebook
            ),
            asked,
        )


async def test_benchmarks_are_measured_before_and_after_and_one_that_fails_stops_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal, notebook = Journal(tmp_path / "j.sqlite"), Notebook()
    eval_sets = [FixedSet("first", "no verdicts"), FixedSet("second")]
    async with schedule_of(journal, notebook, eval_sets, []) as (schedule, _):
        for version, when in ((0, "before"), (2, "during"), (4, "after")):
            with caplog.at_level(logging.WARNING):
                await schedule.wait(Publication(version, tmp_path, {}), when)
    assert [(row["step"], row["when"], row["benchmark"], row["template"]) for row in notebook.benchmarks] == [
        (0, "before", "second", "r1"),
        (4, "after", "second", "r1"),
    ]
    assert notebook.evaluations == []
    assert "benchmark first before training of version 0 failed: no verdicts" in caplog.text
    assert [answer.correctness for answer in read_answers(journal, 4, "second")] == [0.0, 0.0]
    assert read_texts(journal, 4, "second", ["train:1", "train:2"]) == {}
    assert read_answers(journal, 4, "first") == []


async def test_the_journal_keeps_what_each_response_amounted_to(tmp_path: Path) -> None:
    journal, notebook = Journal(tmp_path / "j.sqlite"), Notebook()
    async with schedule_of(journal, notebook, [], TASKS) as (schedule, asked):
        asked.rewards = [1.0, None]
        await schedule.wait(Publication(0, tmp_path, {}), "before")
    assert read_answers(journal, 0, "held-out") == [
        Answer("train:1", -1, "correct", 1.0, 4, False, "2"),
        Answer("train:2", -1, "fault", None, 4, True, "2"),
        Answer("train:1", 0, "correct", 1.0, 4, False, "2"),
        Answer("train:1", 1, "correct", 1.0, 4, False, "2"),
        Answer("train:2", 0, "wrong", 0.0, 4, False, "2"),
        Answer("train:2", 1, "wrong", 0.0, 4, False, "2"),
    ]
    assert read_texts(journal, 0, "held-out", ["train:1", "train:9"]) == {"train:1": "to train:1"}
    assert read_prompts(journal, "held-out") == {"train:1": "1+1=", "train:2": "2+1="}
    (row,) = notebook.evaluations
    assert (row["greedy_accuracy"], row["avg_at_k"], row["num_faults"]) == (1.0, 0.5, 1)
    assert (row["template"], row["top_p"]) == ("r1", 0.9)
    # The journal has them; metrics.jsonl stays small.
    assert "greedy_scores" not in row


async def test_a_version_that_is_evaluated_again_has_the_newer_answers_alone(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.sqlite")
    for rewards, tasks in (([1.0, 1.0], TASKS), ([0.0], TASKS[:1])):
        async with schedule_of(journal, Notebook(), [], tasks) as (schedule, asked):
            asked.rewards = rewards
            await schedule.wait(Publication(2, tmp_path, {}), "during")
    (answer,) = read_answers(journal, 2, "held-out")
    assert (answer.task_id, answer.correctness) == ("train:1", 0.0)


async def test_greedy_answers_alone_leave_the_samples_of_the_version(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.sqlite")
    for when in ("after", "during"):
        async with schedule_of(journal, Notebook(), [], TASKS) as (schedule, asked):
            asked.rewards = [1.0, 0.0]
            await schedule.wait(Publication(4, tmp_path, {}), when)
    assert len(read_answers(journal, 4, "held-out")) == 2 + 4


async def test_a_run_that_resumes_forgets_the_evaluations_of_versions_that_it_makes_again(
    tmp_path: Path,
) -> None:
    journal = Journal(tmp_path / "j.sqlite")
    async with schedule_of(journal, Notebook(), [], TASKS) as (schedule, asked):
        asked.rewards = [1.0, 0.0]
        for version in (2, 4):
            await schedule.wait(Publication(version, tmp_path, {}), "during")
    record_start(journal, 2, "recipe")
    journal.barrier_blocking()
    assert [len(read_answers(journal, version, "held-out")) for version in (2, 4)] == [2, 0]


async def test_each_set_is_measured_when_its_own_schedule_says(tmp_path: Path) -> None:
    journal, notebook = Journal(tmp_path / "j.sqlite"), Notebook()
    eval_sets = [FixedSet("often", every_steps=1), FixedSet("seldom", every_steps=3), FixedSet("ends")]
    async with schedule_of(journal, notebook, eval_sets, TASKS) as (schedule, asked):
        asked.rewards = [1.0, 0.0]
        for version, when in ((0, "before"), (1, "during"), (2, "during"), (3, "during"), (4, "after")):
            assert when != "during" or schedule.is_due(version, 4)
            await schedule.wait(Publication(version, tmp_path, {}), when)
        # What is measured is not due again, and a last version belongs to "after".
        assert not schedule.is_due(3, 4) and not schedule.is_due(4, 4)
    measured: dict[str, list[int]] = {}
    for row in notebook.benchmarks:
        measured.setdefault(row["benchmark"], []).append(row["step"])
    assert measured == {"often": [0, 1, 2, 3, 4], "seldom": [0, 3, 4], "ends": [0, 4]}
    assert [row["step"] for row in notebook.evaluations] == [0, 2, 4]
    assert [answer.correctness for answer in read_answers(journal, 3, "seldom")] == [0.0, 0.0]


async def test_an_evaluation_before_training_that_takes_long_says_how_far_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "SHOWN_AFTER_SECONDS", 0.0)
    journal, notebook = Journal(tmp_path / "j.sqlite"), Notebook()
    async with schedule_of(journal, notebook, [], TASKS) as (schedule, asked):
        asked.rewards = [1.0, 1.0]
        await schedule.wait(Publication(2, tmp_path, {}), "during")
        assert capsys.readouterr().err == ""
        await schedule.wait(Publication(0, tmp_path, {}), "before")
    assert schedule.num_tokens == 2 * 4 + 6 * 4
    begun, ended = capsys.readouterr().err.splitlines()
    assert begun == "start   evaluating held-out before training"
    assert ended.startswith("done    evaluating held-out before training in ")
