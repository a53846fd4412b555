"""Held-out tasks that two runs answered differently at their last evaluations, with both answers."""

from collections.abc import Sequence
from typing import Literal, TypedDict, get_args

from asyncrl.journal.evaluations import read_prompts, read_texts
from asyncrl.readers.compare.answers import HELDOUT, AnswersOf, common, greedy_scores
from asyncrl.readers.compare.contest import Answers, differing_tasks
from asyncrl.readers.compare.recorded import RecordedRun

Kind = Literal["second", "first", "neither"]
"""The run that alone is right; "neither": both are right, or both wrong, with different answers."""
KINDS: tuple[Kind, ...] = get_args(Kind)


class Given(TypedDict):
    """One side's most likely answer."""

    text: str | None
    extracted: str | None
    """Answer as the verifier read it."""
    outcome: str
    num_tokens: int
    is_cut: bool


class DifferingTask(TypedDict):
    task_id: str
    """Task of the first run."""
    prompt: str
    """Prompt of the first run."""
    kind: Kind
    first: Given
    second: Given


class DifferingAnswers(TypedDict):
    first_step: int | None
    """Step of the evaluation; None where there is none."""
    second_step: int | None
    counts: dict[Kind, int]
    tasks: list[DifferingTask]
    """Tasks that were asked for, in the order of the first run's tasks."""


def differing_answers(
    first: RecordedRun, second: RecordedRun, *, kind: Kind, offset: int = 0, limit: int = 20
) -> DifferingAnswers:
    """`limit` tasks of `kind` from `offset` on. Raises InputError for a journal that cannot be read."""
    runs = (first, second)
    steps = [None if (row := run.last_evaluation()) is None else int(row["step"]) for run in runs]
    answers = AnswersOf(runs, HELDOUT)
    given = [{} if step is None else answers.at(run, step) for run, step in zip(runs, steps, strict=True)]
    by_kind = _by_kind(*given)
    chosen = by_kind[kind][offset : offset + limit]
    sides = [_given(run, step, each, chosen) for run, step, each in zip(runs, steps, given, strict=True)]
    prompts = read_prompts(first.journal, HELDOUT) if chosen and first.journal is not None else {}
    ids = [given[0][task][0].task_id for task in chosen]
    return {
        "first_step": steps[0],
        "second_step": steps[1],
        "counts": {name: len(tasks) for name, tasks in by_kind.items()},
        "tasks": [
            {"task_id": task, "prompt": prompts.get(task, ""), "kind": kind, "first": before, "second": after}
            for task, before, after in zip(ids, *sides, strict=True)
        ],
    }


def _by_kind(first: Answers, second: Answers) -> dict[Kind, list[str]]:
    found: dict[Kind, list[str]] = {kind: [] for kind in KINDS}
    scores = [greedy_scores(each) for each in (first, second)]
    for task in differing_tasks(common(scores).tasks, first, second):
        before, after = (each[task] or 0.0 for each in scores)
        found["neither" if before == after else "second" if after > before else "first"].append(task)
    return found


def _given(run: RecordedRun, step: int | None, answers: Answers, chosen: Sequence[str]) -> list[Given]:
    if run.journal is None or step is None:
        return []
    # The most likely answer comes before the samples.
    found = [answers[task][0] for task in chosen]
    texts = read_texts(run.journal, step, HELDOUT, [answer.task_id for answer in found])
    return [
        {
            "text": texts.get(answer.task_id),
            "extracted": answer.extracted,
            "outcome": answer.outcome,
            "num_tokens": answer.num_tokens,
            "is_cut": answer.is_cut,
        }
        for answer in found
    ]
