"""Answers that a result keeps as text: which, and how long."""

import dataclasses

from fakes.records import make_score, make_task

from asyncrl.evaluation.model_results import shown_answers
from asyncrl.evaluation.result import GradedResponse, Result
from asyncrl.journal.kept_answers import MOST_CHARACTERS, MOST_TASKS

TASKS = [make_task(1), make_task(2)]


def response(text: str, correctness: float | None = 1.0) -> GradedResponse:
    return GradedResponse(text, 3, (0,), make_score(correctness))


def test_the_most_likely_answers_are_kept_where_there_are_any_and_the_first_samples_elsewhere() -> None:
    samples = [[response("a"), response("b")], [response("c"), response("d")]]
    greedy = [[response("e", 0.0)], [response("f", None)]]
    found = shown_answers(TASKS, Result(None, None, {}, greedy, samples))
    assert found["is_greedy"] and [each["text"] for each in found["tasks"]] == ["e", "f"]
    assert [each["correctness"] for each in found["tasks"]] == [0.0, None]
    assert [each["prompt"] for each in found["tasks"]] == [task.prompt for task in TASKS]
    found = shown_answers(TASKS, Result(None, None, {}, sampled_responses=samples))
    assert not found["is_greedy"] and [each["text"] for each in found["tasks"]] == ["a", "c"]


def test_long_texts_are_shortened_and_only_the_first_tasks_are_kept() -> None:
    tasks = [dataclasses.replace(make_task(n), prompt="q" * 9999) for n in range(MOST_TASKS + 5)]
    found = shown_answers(tasks, Result(None, None, {}, [[response("a\ud800" + "b" * 9999)]] * len(tasks)))
    assert found["num_tasks"] == len(tasks) and len(found["tasks"]) == MOST_TASKS
    first = found["tasks"][0]
    assert first["text"].startswith("a\ufffdb") and "characters are not shown" in first["text"]
    assert MOST_CHARACTERS < len(first["text"]) < MOST_CHARACTERS + 100 > len(first["prompt"])
