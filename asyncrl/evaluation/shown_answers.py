"""The first answers of a result, as text that readers show (`asyncrl.journal.shown_answers`)."""

from collections.abc import Sequence

from asyncrl.evaluation.result import GradedResponse, Result
from asyncrl.journal.shown_answers import MOST_CHARACTERS, MOST_TASKS, ShownAnswer, ShownAnswers
from asyncrl.records import Task
from asyncrl.system.shortened import shortened
from verifiers.storable import storable


def shown_answers(tasks: Sequence[Task], result: Result) -> ShownAnswers:
    """`tasks` are those of the result, in its order."""
    groups = result.greedy_responses or result.sampled_responses
    pairs = zip(tasks[:MOST_TASKS], groups, strict=False)
    return {
        "is_greedy": bool(result.greedy_responses),
        "num_tasks": len(tasks),
        "tasks": [_shown(task, group[0]) for task, group in pairs if group],
    }


def _shown(task: Task, response: GradedResponse) -> ShownAnswer:
    score = response.score
    return {
        "task_id": task.task_id,
        "prompt": _kept(task.prompt),
        "text": _kept(response.text),
        "extracted": None if score.extracted is None else _kept(score.extracted),
        "outcome": score.outcome,
        "correctness": score.correctness,
        "num_tokens": response.num_tokens,
        "is_cut": response.is_cut,
    }


def _kept(text: str) -> str:
    return shortened(storable(text), MOST_CHARACTERS)
