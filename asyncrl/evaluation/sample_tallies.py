"""Tallies of samples: how often each answer of a task was given, and which are correct.

Which answer is the gold of a comparison follows from how often each was given (`rollout/equal_answers.py`),
so equal samples have equal tallies.
"""

import asyncio
from collections.abc import Sequence

from asyncrl.evaluation.result import Groups
from asyncrl.observe.metrics.sample_curves import Tally
from asyncrl.records import Score, Task
from asyncrl.rollout.equal_answers import answer_classes, is_readable
from asyncrl.rollout.grade import Grader

TASKS_AT_ONCE = 32


async def tallies_of(tasks: Sequence[Task], groups: Groups, grader: Grader) -> list[Tally]:
    """A tally for each task, in order; `groups` are the samples of each."""
    graded = [[r.score for r in group if r.score.correctness is not None] for group in groups]
    has_answers = all(is_readable(score) for scores in graded for score in scores)
    # Where a score lies in between, those of all tasks are kept.
    is_binary = all(score.correctness in (0.0, 1.0) for scores in graded for score in scores)
    places = asyncio.Semaphore(TASKS_AT_ONCE)

    async def tally(task: Task, scores: Sequence[Score]) -> Tally:
        async with places:
            answers = await _answers(task, scores, grader) if has_answers else None
        values = tuple(score.correctness for score in scores if score.correctness is not None)
        num_correct = sum(value == 1.0 for value in values)
        return Tally(len(scores), num_correct, answers, None if is_binary else values)

    async with asyncio.TaskGroup() as running:
        found = [running.create_task(tally(task, scores)) for task, scores in zip(tasks, graded, strict=True)]
    return [one.result() for one in found]


async def _answers(task: Task, scores: Sequence[Score], grader: Grader) -> tuple[tuple[int, int], ...]:
    """(samples with it, correct ones) of each answer, most first."""
    classes = await answer_classes(task.verifier, scores, grader)
    sizes = [(len(places), sum(scores[i].correctness == 1.0 for i in places)) for places in classes]
    return tuple(sorted(sizes, reverse=True))
