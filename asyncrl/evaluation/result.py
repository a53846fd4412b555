"""Results of an evaluation from its graded responses: shares with 95% intervals, lengths, cut-offs, faults.

A fault is left out of every share and is counted: it is neither right nor wrong.
"""

import asyncio
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, NotRequired, TypedDict

from asyncrl.errors import AsyncrlError
from asyncrl.observe.metrics import estimates
from asyncrl.observe.metrics.sample_curves import Tally
from asyncrl.records import PolicyVersion, Score, Task
from asyncrl.rollout.equal_answers import answer_classes, is_readable
from asyncrl.rollout.grade import Grader

Scores = list[float | None]
"""Per task, in [0, 1]; None for a task without enough verdicts."""


class EvaluationFailed(AsyncrlError):
    """No result: servers kept failing, or no response got a verdict."""


@dataclass(frozen=True, slots=True)
class GradedResponse:
    """One graded response to a task."""

    text: str
    num_tokens: int
    versions: tuple[PolicyVersion, ...]
    score: Score
    is_cut: bool = False
    """Whether it ended at the limit of its tokens."""
    num_turns: int | None = None
    """None where responses have one turn."""
    num_calls: int | None = 0
    """Calls of tools that were answered; None of an agent, whose tools are its own."""


Groups = Sequence[Sequence[GradedResponse]]
"""Responses of each task."""


class Answered(TypedDict):
    """Figures of all responses, faults included."""

    turns_mean: NotRequired[float]
    """Only where responses have turns."""
    tool_use_share: NotRequired[float]
    """Share of responses that called a tool, with its 95% interval over tasks; this and the next two only
    where environments and tools answer turns."""
    tool_use_low: NotRequired[float]
    tool_use_high: NotRequired[float]

    response_tokens_mean: float
    cut_share: float
    """Share of responses that ended at the limit of their tokens."""
    num_tasks: int
    num_faults: int
    """Responses without a verdict."""
    version_min: PolicyVersion
    """Oldest of the versions that answered; -1 when no answer has a token."""
    version_max: PolicyVersion


class Greedy(Answered):
    """Figures of the most likely answer to each task."""

    greedy_accuracy: float
    greedy_low: float
    """Ends of the 95% Wilson interval."""
    greedy_high: float


class SampledUse(TypedDict, total=False):
    """`tool_use_share` of the samples, also where a row has that of the most likely answers."""

    sampled_tool_use_share: float
    sampled_tool_use_low: float
    sampled_tool_use_high: float


class Sampled(Answered, SampledUse):
    """Figures of k samples per task, with 95% intervals over tasks."""

    k: int
    avg_at_k: float
    avg_low: float
    avg_high: float
    pass_at_k: float
    pass_low: float
    pass_high: float


@dataclass(frozen=True, slots=True)
class Result:
    """Result of one model on one evaluation set: greedy, sampled, or both."""

    greedy: Greedy | None
    sampled: Sampled | None
    scores: dict[str, Scores]
    """"greedy", "avg" and "pass" -> the score of each task, in the order of the tasks."""
    greedy_responses: Groups = ()
    """The most likely answer to each task, where they were asked for."""
    sampled_responses: Groups = ()
    """The samples of each task, where there are any."""
    divided: Mapping[str, float] = field(default_factory=dict)
    """Columns for each source of the tasks, where they come from several, and for each named score."""

    def row(self) -> dict[str, Any]:
        """The numbers and the scores, for JSON and metrics.jsonl."""
        return {**self.numbers(), **{f"{name}_scores": scores for name, scores in self.scores.items()}}

    def numbers(self) -> dict[str, Any]:
        """Flat; lengths and cut-offs are the greedy ones where there are both."""
        parts = [part for part in (self.sampled, self.greedy) if part is not None]
        merged = dict(itertools.chain.from_iterable(part.items() for part in parts))
        return {**merged, "num_faults": sum(part["num_faults"] for part in parts), **self.divided}


def greedy_result(groups: Groups) -> Greedy:
    """Figures of one response per task; at least one has a verdict."""
    graded = list(itertools.chain.from_iterable(map(correct_of, groups)))
    accuracy = estimates.accuracy(sum(graded), len(graded))
    return {
        **_answered(groups),
        "greedy_accuracy": accuracy.mean,
        "greedy_low": accuracy.low,
        "greedy_high": accuracy.high,
    }


def sampled_result(groups: Groups, k: int) -> Sampled:
    """Raises EvaluationFailed when no task has k verdicts."""
    correct = [correct_of(group) for group in groups]
    if not any(len(graded) >= k for graded in correct):
        raise EvaluationFailed(f"none of {len(groups)} tasks got {k} verdicts")
    average = estimates.avg_at_k(correct)
    passed = estimates.pass_at_k(correct, k)
    answered = _answered(groups)
    return {
        **answered,
        **_sampled_use(answered),
        "k": k,
        "avg_at_k": average.mean,
        "avg_low": average.low,
        "avg_high": average.high,
        "pass_at_k": passed.mean,
        "pass_low": passed.low,
        "pass_high": passed.high,
    }


def _sampled_use(answered: Answered) -> SampledUse:
    if "tool_use_share" not in answered:
        return {}
    return {
        "sampled_tool_use_share": answered["tool_use_share"],
        "sampled_tool_use_low": answered["tool_use_low"],
        "sampled_tool_use_high": answered["tool_use_high"],
    }


def chance_scores(groups: Groups, k: int) -> Scores:
    """pass@k of each task, which for k = 1 is its share of correct responses."""
    counts = [correct_of(group) for group in groups]
    return [
        estimates.chance_of_a_correct_draw(sum(graded), len(graded), k=k) if len(graded) >= k else None
        for graded in counts
    ]


def correct_of(responses: Sequence[GradedResponse]) -> list[bool]:
    """Whether each response with a verdict is correct."""
    return [r.score.correctness == 1.0 for r in responses if r.score.correctness is not None]


def _answered(groups: Groups) -> Answered:
    responses = list(itertools.chain.from_iterable(groups))
    versions = [version for response in responses for version in response.versions]
    found: Answered = {
        "response_tokens_mean": sum(r.num_tokens for r in responses) / len(responses),
        "cut_share": sum(r.is_cut for r in responses) / len(responses),
        "num_tasks": len(groups),
        "num_faults": sum(r.score.correctness is None for r in responses),
        "version_min": min(versions, default=-1),
        "version_max": max(versions, default=-1),
    }
    turns = [response.num_turns for response in responses if response.num_turns is not None]
    if turns:
        found["turns_mean"] = sum(turns) / len(turns)
        calls = [[r.num_calls > 0 for r in group if r.num_calls is not None] for group in groups]
        if all(calls):
            use = estimates.avg_at_k(calls)
            found["tool_use_share"], found["tool_use_low"], found["tool_use_high"] = (
                use.mean,
                use.low,
                use.high,
            )
    return found


GREEDY = (
    *("greedy_accuracy", "greedy_low", "greedy_high"),
    *("tool_use_share", "tool_use_low", "tool_use_high"),
)
SAMPLED = (
    *("avg_at_k", "avg_low", "avg_high"),
    *("sampled_tool_use_share", "sampled_tool_use_low", "sampled_tool_use_high"),
)


def numbers_by_source(tasks: Sequence[Task], answers: Groups, samples: Groups, k: int) -> dict[str, float]:
    """ "COLUMN_by_source_SOURCE" -> its value; empty where all tasks are of one source.

    `answers` are the most likely ones and `samples` k per task, both in the order of `tasks`, or empty. A
    source without verdicts is left out.
    """
    if len({task.source() for task in tasks}) < 2:
        return {}
    found: dict[str, float] = {}
    for source, groups in _split(tasks, answers):
        if any(map(correct_of, groups)):
            found |= _named(source, greedy_result(groups), GREEDY)
    for source, groups in _split(tasks, samples):
        if any(len(correct_of(group)) >= k for group in groups):
            found |= _named(source, sampled_result(groups, k), SAMPLED)
    return found


def numbers_by_part(answers: Groups, samples: Groups) -> dict[str, float]:
    """ "greedy_score_by_part_PART", "sampled_score_by_part_PART" -> mean of this named score (such as
    a role's) over the responses that have it."""
    found: dict[str, float] = {}
    for name, groups in (("greedy", answers), ("sampled", samples)):
        values: dict[str, list[float]] = {}
        for response in itertools.chain.from_iterable(groups):
            for part, score in response.score.scores.items():
                values.setdefault(part, []).append(score)
        found |= {f"{name}_score_by_part_{part}": fmean(own) for part, own in sorted(values.items())}
    return found


def _named(source: str, figures: Mapping[str, Any], names: Sequence[str]) -> dict[str, float]:
    return {f"{name}_by_source_{source}": figures[name] for name in names if name in figures}


def _split(tasks: Sequence[Task], groups: Groups) -> Iterator[tuple[str, list[Sequence[GradedResponse]]]]:
    """(source, groups of its tasks)."""
    by_source: dict[str, list[Sequence[GradedResponse]]] = {}
    for task, group in zip(tasks, groups, strict=bool(groups)):
        by_source.setdefault(task.source(), []).append(group)
    yield from by_source.items()


# Which answer is the gold of a comparison follows from how often each was given (`rollout/equal_answers.py`),
# so equal samples have equal tallies.
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
