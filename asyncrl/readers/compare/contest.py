"""Whether one group of runs is better than another, on the tasks that both answered, in a sentence.

Single runs are compared task by task, as `asyncrl eval` compares models; of several seeds on both sides,
seeds and tasks are resampled. Where an evaluation has no answers per task, the shares alone are compared,
which is said.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict

import numpy as np

from asyncrl.errors import InputError
from asyncrl.journal.evaluations import Answer
from asyncrl.observe.metrics.estimates import paired_difference
from asyncrl.observe.metrics.metrics_file import Row
from asyncrl.readers.compare import bootstrap
from asyncrl.readers.compare.answers import (
    HELDOUT,
    AnswersOf,
    Common,
    Scores,
    common,
    greedy_scores,
    sampled_scores,
)
from asyncrl.readers.compare.bootstrap import Interval, Resampling
from asyncrl.readers.compare.groups import Group, interval_of
from asyncrl.readers.compare.recorded import RecordedRun
from asyncrl.system.rounding import fixed


class NothingInCommon(InputError):
    """Two groups were asked no task that both have verdicts on."""


Answers = Mapping[str, Sequence[Answer]]
Way = Literal["paired", "seeds and tasks", "not paired"]


class Difference(TypedDict):
    """Mean of second - first with its 95% interval; shares, in [-1, 1]."""

    mean: float
    low: float
    high: float


class OverSeeds(Difference):
    """Difference of the means of runs alone, by Welch's t interval."""

    num_first: int
    """Seeds."""
    num_second: int


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
    """Task by task (paired), by resampled seeds and tasks, or from shares alone (not paired)."""
    difference: Difference
    num_tasks: int
    """Tasks that all runs of both groups have verdicts on; the difference is over these. Not paired: those of
    the run with the fewest."""
    num_asked: list[int]
    """Tasks of each run, those of the first group first."""
    num_without_verdict: int
    """Common tasks that were left out."""
    num_different: int | None
    """Tasks with another answer or verdict, of two single runs; None for groups of seeds and for samples."""
    num_right_in_first_alone: int | None
    num_right_in_second_alone: int | None
    over_seeds: OverSeeds | None
    text: str
    """The contest as a sentence."""


@dataclass(frozen=True, slots=True)
class Measure:
    """A share of an evaluation: its names in a row of metrics.jsonl, and its scores per task."""

    row: tuple[str, str, str]
    scores: Callable[[Answers], Scores]
    is_greedy: bool

    def title(self, row: Row) -> str:
        return "greedy accuracy" if self.is_greedy else f"avg@{row['k']}"


MEASURES = (
    Measure(("greedy_accuracy", "greedy_low", "greedy_high"), greedy_scores, True),
    Measure(("avg_at_k", "avg_low", "avg_high"), sampled_scores, False),
)


def contests(
    first: Group, second: Group, name: str, rows: Mapping[str, Row], resampling: Resampling
) -> list[Contest]:
    """A contest for each measure that all runs have. `rows`: label of the run -> its evaluation `name`.

    Raises NothingInCommon.
    """
    runs = [*first.runs, *second.runs]
    answers = AnswersOf(runs, name)
    given = {run.label: answers.at(run, int(rows[run.label]["step"])) for run in runs}
    found = []
    for measure in MEASURES:
        if any(rows[run.label].get(measure.row[0]) is None for run in runs):
            continue
        scores = [measure.scores(given[run.label]) for run in runs]
        contest = (
            _paired(first, second, name, measure, scores, given, rows, resampling)
            if all(scores)
            else _unpaired(first, second, name, measure, rows)
        )
        found.append(contest)
    return found


def difference_of(first: Sequence[Scores], second: Sequence[Scores], resampling: Resampling) -> Difference:
    """Difference of two groups on the tasks that all were asked; at least one has a verdict from all."""
    shared = common([*first, *second])
    return _difference(shared, len(first), resampling)[0]


def _paired(
    first: Group,
    second: Group,
    name: str,
    measure: Measure,
    scores: list[Scores],
    given: Mapping[str, Answers],
    rows: Mapping[str, Row],
    resampling: Resampling,
) -> Contest:
    runs = [*first.runs, *second.runs]
    shared = common(scores)
    if not shared.tasks:
        raise NothingInCommon(_nothing_in_common(first, second, name, scores, shared))
    found, way = _difference(shared, len(first.runs), resampling)
    counts = _counts(shared, runs, given) if measure.is_greedy and len(runs) == 2 else (None, None, None)
    contest = Contest(
        first=first.label,
        second=second.label,
        name=name,
        measure=measure.title(rows[runs[0].label]),
        way=way,
        difference=found,
        num_tasks=len(shared.tasks),
        num_asked=shared.num_asked,
        num_without_verdict=shared.num_without_verdict,
        num_different=counts[0],
        num_right_in_first_alone=counts[1],
        num_right_in_second_alone=counts[2],
        over_seeds=_over_seeds(first, second, measure, rows),
        text="",
    )
    return {**contest, "text": sentence(contest)}


def _difference(shared: Common, num_first: int, resampling: Resampling) -> tuple[Difference, Way]:
    before, after = shared.scores[:num_first], shared.scores[num_first:]
    if min(len(before), len(after)) > 1:
        return _as_difference(bootstrap.crossed(before, after, resampling)), "seeds and tasks"
    sides = before.mean(axis=0), after.mean(axis=0)
    known = paired_difference(*(side.tolist() for side in sides))
    return {"mean": known.mean, "low": known.low, "high": known.high}, "paired"


def _counts(
    shared: Common, runs: Sequence[RecordedRun], given: Mapping[str, Answers]
) -> tuple[int, int, int]:
    """Tasks with another answer or verdict; right in the first run alone; in the second alone."""
    right = shared.scores == 1.0
    different = differing_tasks(shared.tasks, *(given[run.label] for run in runs))
    return len(different), int(np.sum(right[0] & ~right[1])), int(np.sum(~right[0] & right[1]))


def differing_tasks(tasks: Sequence[str], first: Answers, second: Answers) -> list[str]:
    """Tasks whose most likely answers differ: as the verifier read them, or in their verdict."""

    def key(answers: Answers, task: str) -> tuple[str | None, float | None]:
        # The most likely answer comes before the samples.
        return answers[task][0].extracted, answers[task][0].correctness

    return [task for task in tasks if key(first, task) != key(second, task)]


def _unpaired(first: Group, second: Group, name: str, measure: Measure, rows: Mapping[str, Row]) -> Contest:
    sides = [interval_of([rows[run.label] for run in group.runs], measure.row) for group in (first, second)]
    before, after = sides
    assert before is not None and after is not None, "contests has looked for the measure"
    runs = [*first.runs, *second.runs]
    num_asked = [int(rows[run.label]["num_tasks"]) for run in runs]
    contest = Contest(
        first=first.label,
        second=second.label,
        name=name,
        measure=measure.title(rows[runs[0].label]),
        way="not paired",
        difference=_as_difference(bootstrap.combined(before, after)),
        num_tasks=min(num_asked),
        num_asked=num_asked,
        num_without_verdict=0,
        num_different=None,
        num_right_in_first_alone=None,
        num_right_in_second_alone=None,
        over_seeds=_over_seeds(first, second, measure, rows),
        text="",
    )
    return {**contest, "text": sentence(contest)}


def _over_seeds(first: Group, second: Group, measure: Measure, rows: Mapping[str, Row]) -> OverSeeds | None:
    values = [[float(rows[run.label][measure.row[0]]) for run in group.runs] for group in (first, second)]
    found = bootstrap.welch(*values)
    if found is None:
        return None
    return {**_as_difference(found), "num_first": len(first.runs), "num_second": len(second.runs)}


def sentence(contest: Contest) -> str:
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
    if contest["way"] == "not paired":
        return f" (not paired: from shares alone, {whole})"
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


def _as_difference(found: Interval) -> Difference:
    return {"mean": found.mean, "low": found.low, "high": found.high}
