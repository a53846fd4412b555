"""Whether one group of runs is better than another, on the tasks that both answered, and the tasks on
which two runs differ.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict, get_args

import numpy as np

from asyncrl.errors import InputError
from asyncrl.journal.evaluations import Answer, read_prompts, read_texts
from asyncrl.observe.metrics.estimates import paired_difference
from asyncrl.readers.compare.groups import Group, seeds_and_tasks
from asyncrl.readers.compare.recorded import (
    HELDOUT,
    AnswersOf,
    Common,
    RecordedRun,
    Scores,
    common,
    greedy_scores,
    sampled_scores,
)
from asyncrl.run.metrics_file import Row
from asyncrl.system.words import fixed


class NothingInCommon(InputError):
    """Two groups were asked no task that both have verdicts on."""


Answers = Mapping[str, Sequence[Answer]]
Way = Literal["paired", "seeds and tasks"]


class Difference(TypedDict):
    """Mean of second - first with its 95% interval; shares, in [-1, 1]."""

    mean: float
    low: float
    high: float


class Contest(TypedDict):
    """Two groups on one evaluation."""

    first: str
    """Label of the group that the other is compared with."""
    second: str
    name: str
    """held-out, or the benchmark."""
    measure: str
    """greedy accuracy, or avg@k."""
    way: Way
    """Task by task (paired), or by the variances of seeds and tasks."""
    difference: Difference
    num_tasks: int
    """Tasks that all runs of both groups have verdicts on; the difference is over these."""
    num_asked: list[int]
    """Tasks of each run, those of the first group first."""
    num_without_verdict: int
    """Common tasks that were left out."""
    num_different: int | None
    """Tasks with another answer or verdict, of two single runs; None for groups of seeds and for samples."""
    num_right_in_first_alone: int | None
    num_right_in_second_alone: int | None
    text: str
    """The contest as a sentence."""


MEASURES: Mapping[str, Callable[[Answers], Scores]] = {
    "greedy_accuracy": greedy_scores,
    "avg_at_k": sampled_scores,
}
"""Share in a row of metrics.jsonl -> its scores per task."""


def contests(first: Group, second: Group, name: str, rows: Mapping[str, Row]) -> list[Contest]:
    """A contest for each measure that all runs have answers of. `rows`: label of the run -> its evaluation
    `name`. Raises NothingInCommon."""
    runs = [*first.runs, *second.runs]
    answers = AnswersOf(runs, name)
    given = [answers.at(run, int(rows[run.label]["step"])) for run in runs]
    found = []
    for measure, scores_of in MEASURES.items():
        scores = [scores_of(each) for each in given]
        if not all(scores) or any(rows[run.label].get(measure) is None for run in runs):
            continue
        shared = common(scores)
        if not shared.tasks:
            raise NothingInCommon(_nothing_in_common(first, second, name, scores, shared))
        k = rows[runs[0].label].get("k")
        title = "greedy accuracy" if measure == "greedy_accuracy" else f"avg@{k}"
        is_of_two = measure == "greedy_accuracy" and len(runs) == 2
        found.append(_contest(first, second, name, title, shared, given if is_of_two else None))
    return found


def _contest(
    first: Group, second: Group, name: str, title: str, shared: Common, given: Sequence[Answers] | None
) -> Contest:
    """`given` has the most likely answers of two single runs."""
    found, way = _difference(shared, len(first.runs))
    right = shared.scores == 1.0
    contest = Contest(
        first=first.label,
        second=second.label,
        name=name,
        measure=title,
        way=way,
        difference=found,
        num_tasks=len(shared.tasks),
        num_asked=shared.num_asked,
        num_without_verdict=shared.num_without_verdict,
        num_different=None if given is None else len(differing_tasks(shared.tasks, *given)),
        num_right_in_first_alone=None if given is None else int(np.sum(right[0] & ~right[1])),
        num_right_in_second_alone=None if given is None else int(np.sum(~right[0] & right[1])),
        text="",
    )
    return {**contest, "text": _sentence(contest)}


def _difference(shared: Common, num_first: int) -> tuple[Difference, Way]:
    before, after = shared.scores[:num_first], shared.scores[num_first:]
    if min(len(before), len(after)) > 1:
        over_both = seeds_and_tasks(before, after)
        return {"mean": over_both.mean, "low": over_both.low, "high": over_both.high}, "seeds and tasks"
    found = paired_difference(before.mean(axis=0).tolist(), after.mean(axis=0).tolist())
    return {"mean": found.mean, "low": found.low, "high": found.high}, "paired"


def differing_tasks(tasks: Sequence[str], first: Answers, second: Answers) -> list[str]:
    """Tasks whose most likely answers differ: as the verifier read them, or in their verdict."""

    def key(answers: Answers, task: str) -> tuple[str | None, float | None]:
        # The most likely answer comes before the samples.
        return answers[task][0].extracted, answers[task][0].correctness

    return [task for task in tasks if key(first, task) != key(second, task)]


def _sentence(contest: Contest) -> str:
    """The result in words: the group ahead, by how many points, how sure that is, and over which tasks."""
    found = contest["difference"]
    is_second_ahead = found["mean"] >= 0
    ahead, behind = (contest["second"], contest["first"])[:: 1 if is_second_ahead else -1]
    ends = (found["low"], found["high"]) if is_second_ahead else (-found["high"], -found["low"])
    interval = f"95% {fixed(100 * ends[0], 1)} to {fixed(100 * ends[1], 1)}"
    points = f"{fixed(100 * abs(found['mean']), 1)} points"
    if ends[0] > 0:
        words = f"{ahead} beats {behind} by {points}, {interval}"
    elif found["mean"] == 0:
        words = f"{ahead} and {behind} are level, {interval}"
    else:
        words = f"{ahead} is {points} ahead of {behind}, {interval}: this may be chance"
    return f"{words}{_ground(contest)}."


def _ground(contest: Contest) -> str:
    """The tasks that the numbers are over, in parentheses."""
    whole = f"{contest['num_tasks']:,} tasks"
    asked = set(contest["num_asked"])
    of = f" in common of {' and '.join(f'{n:,}' for n in sorted(asked))}" if len(asked) > 1 else ""
    left_out = (
        f", {contest['num_without_verdict']:,} without a verdict" if contest["num_without_verdict"] else ""
    )
    if contest["num_different"] is None:
        return f" ({whole}{of}{left_out})"
    return (
        f", {contest['num_different']:,} of {whole}{of} answered differently{left_out} "
        f"(right in {contest['second']} alone {contest['num_right_in_second_alone']:,}, "
        f"in {contest['first']} alone {contest['num_right_in_first_alone']:,})"
    )


def _nothing_in_common(first: Group, second: Group, name: str, scores: list[Scores], shared: Common) -> str:
    if shared.num_without_verdict:
        return (
            f"{first.label} and {second.label} have {shared.num_without_verdict:,} {name} tasks in common, "
            f"none of them with a verdict in all runs."
        )
    sides = scores[0], scores[len(first.runs)]
    asked = [f"{len(side):,}, such as {next(iter(side))[:60]!r}" for side in sides]
    same = "data.heldout" if name == HELDOUT else f"rows of {name}"
    return (
        f"{first.label} and {second.label} have no {name} task in common: the first was asked {asked[0]}, "
        f"the second {asked[1]}. Give both the same {same}, or run `asyncrl eval` on "
        f"their models."
    )


Kind = Literal["second", "first", "neither"]
"""The run that alone is right; "neither": both are right, or both wrong, with different answers."""
KINDS: tuple[Kind, ...] = get_args(Kind)


def differing_answers(
    first: RecordedRun, second: RecordedRun, *, kind: Kind, offset: int = 0, limit: int = 20
) -> dict[str, Any]:
    """`limit` tasks of `kind` from `offset` on, in the order of the first run's tasks, with its ids and
    prompts and the most likely answer of each side; counts by kind; steps of both evaluations, None where
    there is none. Raises InputError for a journal that cannot be read."""
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


def _given(
    run: RecordedRun, step: int | None, answers: Answers, chosen: Sequence[str]
) -> list[dict[str, Any]]:
    if run.journal is None or step is None:
        return []
    # The most likely answer comes before the samples.
    found = [answers[task][0] for task in chosen]
    texts = read_texts(run.journal, step, HELDOUT, [answer.task_id for answer in found])
    return [
        {
            "text": texts.get(answer.task_id),
            # As the verifier read it.
            "extracted": answer.extracted,
            "outcome": answer.outcome,
            "num_tokens": answer.num_tokens,
            "is_cut": answer.is_cut,
        }
        for answer in found
    ]
