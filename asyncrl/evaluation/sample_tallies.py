"""Tallies of samples: how often each answer of a task was given, and which are correct.

Answers are compared by the verifier's own equality where it has one (`verifiers.verifier.AnswerVerifier`),
else by their text without space around and repeated space in it. Which answer is the gold of such a
comparison follows from how often each was given, so equal samples have equal tallies.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from asyncrl.evaluation.result import Groups
from asyncrl.observe.metrics.sample_curves import Tally
from asyncrl.records import Score, Task
from asyncrl.rollout.grade import Grader
from verifiers.verdict import Outcome

TASKS_AT_ONCE = 32
Same = Callable[[str, str], Awaitable[bool]]
"""Whether the second answer is the first."""


async def tallies_of(tasks: Sequence[Task], groups: Groups, grader: Grader) -> list[Tally]:
    """A tally for each task, in order; `groups` are the samples of each."""
    graded = [[r.score for r in group if r.score.correctness is not None] for group in groups]
    has_answers = all(_is_readable(score) for scores in graded for score in scores)
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


def _is_readable(score: Score) -> bool:
    """Whether the verifier says what the answer is. What is wrong may have none that can be read."""
    return score.extracted is not None or score.correctness != 1.0


async def _answers(task: Task, scores: Sequence[Score], grader: Grader) -> tuple[tuple[int, int], ...]:
    """(samples with it, correct ones) of each answer, most first."""
    if not any(score.extracted for score in scores):
        return ()
    spec = task.verifier
    if not grader.has_equality(spec):
        sizes = Counter(text for score in scores if (text := _text(score)) is not None)
        correct = Counter(_text(score) for score in scores if score.correctness == 1.0)
        return _sorted([(size, correct[text]) for text, size in sizes.items()])
    # All correct answers are the gold's.
    num_correct = sum(score.correctness == 1.0 for score in scores)
    wrong = Counter(
        text for score in scores if score.correctness != 1.0 and (text := _text(score)) is not None
    )

    async def same(first: str, second: str) -> bool:
        return await grader.is_same_answer(spec, first, second)

    sizes_of_wrong = await count_equal(wrong, same)
    right = [(num_correct, num_correct)] if num_correct else []
    return _sorted([*right, *((size, 0) for size in sizes_of_wrong)])


async def count_equal(texts: Counter[str], same: Same) -> list[int]:
    """How often each answer was given, where several texts may be one. A text is compared with the first of
    each answer so far, the texts that were given most often first."""
    firsts: list[str] = []
    sizes: list[int] = []
    for text, size in sorted(texts.items(), key=lambda pair: (-pair[1], pair[0])):
        for place, first in enumerate(firsts):
            if await same(first, text):
                sizes[place] += size
                break
        else:
            firsts.append(text)
            sizes.append(size)
    return sizes


def _text(score: Score) -> str | None:
    """The answer; None where there is none, which is no vote."""
    if score.extracted is None or score.outcome == Outcome.NO_ANSWER:
        return None
    return " ".join(score.extracted.split()) or None


def _sorted(answers: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    return tuple(sorted(answers, reverse=True))
