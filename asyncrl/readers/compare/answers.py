"""The answers of several runs to the tasks that all of them were asked.

A task is the same for two runs where both read the same file (its digest, or the pinned commit of a
benchmark, is equal) and its id is equal; else where its prompt is equal, letter by letter.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from asyncrl.journal.evaluations import GREEDY, Answer, read_answers, read_prompts
from asyncrl.journal.starts import recorded_data
from asyncrl.readers.compare.recorded import RecordedRun

HELDOUT = "held-out"
Scores = Mapping[str, float | None]
"""Task -> score in [0, 1]; None without a verdict. As in an accuracy, what is not wholly right is wrong."""
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Common:
    """Scores of runs on the tasks that all of them were asked and have verdicts on."""

    tasks: list[str]
    scores: Floats
    """[runs, tasks]"""
    num_asked: list[int]
    """Tasks of each run."""
    num_without_verdict: int
    """Tasks that all were asked, without a verdict of at least one."""


def common(scores: Sequence[Scores]) -> Common:
    """Scores on the common tasks, in the order of the first run's tasks."""
    first, *others = scores
    shared = [task for task in first if all(task in other for other in others)]
    graded = [task for task in shared if all(each[task] is not None for each in scores)]
    matrix = np.array([[each[task] for task in graded] for each in scores], dtype=np.float64)
    return Common(graded, matrix, [len(each) for each in scores], len(shared) - len(graded))


class AnswersOf:
    """The evaluations `name` of runs, under names of tasks that mean the same for all of them.

    Raises InputError for a journal that cannot be read.
    """

    def __init__(self, runs: Sequence[RecordedRun], name: str) -> None:
        self._name = name
        self._prompts = None if _have_same_rows(runs, name) else {r.label: _prompts(r, name) for r in runs}

    def at(self, run: RecordedRun, version: int) -> dict[str, list[Answer]]:
        """Task -> the answers of `version`, most likely one and samples; empty where none are recorded."""
        found: dict[str, list[Answer]] = {}
        names = {} if self._prompts is None else self._prompts[run.label]
        for answer in () if run.journal is None else read_answers(run.journal, version, self._name):
            found.setdefault(names.get(answer.task_id, answer.task_id), []).append(answer)
        return found


def greedy_scores(answers: Mapping[str, Sequence[Answer]]) -> Scores:
    """Scores of the most likely answers."""
    return {
        task: _right(answer.correctness)
        for task, given in answers.items()
        for answer in given
        if answer.sample == GREEDY
    }


def sampled_scores(answers: Mapping[str, Sequence[Answer]]) -> Scores:
    """The mean over the samples with a verdict: avg@k of each task."""
    found: dict[str, float | None] = {}
    for task, given in answers.items():
        samples = [answer for answer in given if answer.sample != GREEDY]
        graded = [right for answer in samples if (right := _right(answer.correctness)) is not None]
        if samples:
            found[task] = sum(graded) / len(graded) if graded else None
    return found


def _right(correctness: float | None) -> float | None:
    return None if correctness is None else float(correctness == 1.0)


def _have_same_rows(runs: Sequence[RecordedRun], name: str) -> bool:
    if name == HELDOUT:
        sources = {
            None if run.journal is None else recorded_data(run.journal).get("data.heldout") for run in runs
        }
    else:
        # A path names no content; a commit of a hub does.
        rows = [row for run in runs for row in run.metrics.benchmarks if row["benchmark"] == name]
        parts = {str(row.get("source")) for row in rows}
        sources = {part if all("@" in place for place in part.split(" + ")) else None for part in parts}
    return len(sources) == 1 and None not in sources


def _prompts(run: RecordedRun, name: str) -> dict[str, str]:
    return {} if run.journal is None else read_prompts(run.journal, name)
