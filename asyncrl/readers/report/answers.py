"""Answers of the base model and of a trained one, and the results of `asyncrl eval` on a run's models."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from asyncrl.journal.evaluations import (
    GREEDY,
    Answer,
    evaluated_versions,
    read_answers,
    read_prompts,
    read_texts,
)
from asyncrl.journal.kept_answers import ANSWERS, MOST_CHARACTERS, KeptResult, ShownAnswers, read_results
from asyncrl.journal.reader import JournalReader
from asyncrl.observe.metrics.sample_curves import Compared, Tally, compare, compare_rows
from asyncrl.observe.terminal.model_differences import comparison_table
from asyncrl.observe.terminal.table import Table
from asyncrl.readers.compare.recorded import HELDOUT
from asyncrl.readers.report import schema
from asyncrl.run.metrics_file import Row
from asyncrl.system.places import ANSWERS as ANSWERS_FILE
from asyncrl.system.words import shortened

BASE = "base"
LARGE = ("tallies", "curves", "tasks", ANSWERS, "greedy_scores", "avg_scores", "pass_scores")
"""Columns of a result with an entry for each task, or for each k."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The last results of models on one evaluation set, all asked and graded alike."""

    name: str
    models: list[str]
    """Labels; the base model first."""
    rows: list[Row]
    """One for each model, as `asyncrl eval --json` has them."""
    seconds: float
    """Unix time of the newest."""
    compared: Compared | None
    """The curves of those that were sampled; None without any."""

    def table(self) -> Table:
        return comparison_table(self.models, self.rows)

    def answers(self) -> list[tuple[str, ShownAnswers | None]]:
        """Label of each model, and the answers that were kept as text; None of results that have none."""
        return [(label, row.get(ANSWERS)) for label, row in zip(self.models, self.rows, strict=True)]

    def short_rows(self) -> list[Row]:
        """The rows without what has an entry for each task."""
        return [{name: value for name, value in row.items() if name not in LARGE} for row in self.rows]


def read_measured(run_folder: Path) -> list[Measured]:
    """The evaluation set that was measured last comes first. Raises InputError."""
    found = [_measured(each) for each in _alike(read_results(run_folder / ANSWERS_FILE))]
    return sorted(found, key=lambda measured: -measured.seconds)


def _alike(results: Sequence[KeptResult]) -> Iterator[list[KeptResult]]:
    def key(result: KeptResult) -> tuple[str, str]:
        return result.name, result.settings

    for _, group in groupby(sorted(results, key=key), key=key):
        yield sorted(group, key=_order)


def _order(result: KeptResult) -> tuple[bool, int, str]:
    """The base model, then steps by their number, then the others."""
    word, _, rest = result.label.partition(" ")
    number = rest.partition(" ")[0]
    is_step = word == "step" and number.isdecimal()
    return result.label != BASE, int(number) if is_step else 2**62, result.label


def _measured(results: Sequence[KeptResult]) -> Measured:
    labels = [result.label for result in results]
    rows = [result.result for result in results]
    return Measured(
        results[0].name,
        labels,
        rows,
        max(result.seconds for result in results),
        compare_rows(list(zip(labels, rows, strict=True))),
    )


CHANGES = {
    (False, True): "wrong to right",
    (True, False): "right to wrong",
    (True, True): "right twice",
    (False, False): "wrong twice",
}
"""(was right, is right) -> the change."""
TASKS_PER_CHANGE = 3


def before_and_after(journal: JournalReader) -> schema.Answers | None:
    """The first `TASKS_PER_CHANGE` tasks of each change; None without most likely answers of both."""
    versions = evaluated_versions(journal, HELDOUT, is_greedy=True)
    if len(versions) < 2 or versions[0] != 0:
        return None
    steps = versions[0], versions[-1]
    sides = [{a.task_id: a for a in _of(journal, step) if a.sample == GREEDY} for step in steps]
    counts, some = _changes(*({a.task_id: a.correctness for a in each.values()} for each in sides))
    prompts = read_prompts(journal, HELDOUT)
    texts = [read_texts(journal, step, HELDOUT, [*some]) for step in steps]

    def given(side: int, task: str) -> schema.GivenAnswer:
        answer, text = sides[side][task], texts[side].get(task)
        return schema.GivenAnswer(
            text=None if text is None else _cut(text),
            extracted=None if answer.extracted is None else _cut(answer.extracted),
            outcome=answer.outcome,
            num_tokens=answer.num_tokens,
            is_cut=answer.is_cut,
        )

    return schema.Answers(
        before=f"step {steps[0]}",
        after=f"step {steps[1]}",
        is_greedy=True,
        num_tasks=len(sides[0]),
        counts=counts,
        tasks=_tasks(some, lambda task: _cut(prompts.get(task, "")), given),
    )


def measured_before_and_after(measured: Measured) -> schema.Answers | None:
    """As `before_and_after`, of the base model and the last of the others; None where either kept no answers,
    or one the most likely ones and the other samples."""
    kept = [(label, found) for label, found in measured.answers() if found is not None]
    if len(kept) < 2 or kept[0][0] != BASE or kept[0][1]["is_greedy"] != kept[-1][1]["is_greedy"]:
        return None
    sides = [{answer["task_id"]: answer for answer in kept[place][1]["tasks"]} for place in (0, -1)]
    counts, some = _changes(*({t: a["correctness"] for t, a in each.items()} for each in sides))

    def given(side: int, task: str) -> schema.GivenAnswer:
        answer: Mapping[str, Any] = sides[side][task]
        return schema.GivenAnswer(**{name: answer[name] for name in schema.GivenAnswer.model_fields})

    return schema.Answers(
        before=kept[0][0],
        after=kept[-1][0],
        is_greedy=kept[0][1]["is_greedy"],
        num_tasks=kept[0][1]["num_tasks"],
        counts=counts,
        tasks=_tasks(some, lambda task: sides[0][task]["prompt"], given),
    )


def _tasks(
    changes: Mapping[str, str], prompt: Callable[[str], str], given: Callable[[int, str], schema.GivenAnswer]
) -> list[schema.AnsweredTask]:
    """`given` takes the side, 0 before and 1 after, and the task."""
    return [
        schema.AnsweredTask(
            task_id=task, prompt=prompt(task), change=change, before=given(0, task), after=given(1, task)
        )
        for task, change in changes.items()
    ]


def _changes(
    before: Mapping[str, float | None], after: Mapping[str, float | None]
) -> tuple[dict[str, int], dict[str, str]]:
    """Change -> tasks with a verdict on both answers; the first tasks of each -> their change."""
    changes: dict[str, list[str]] = {change: [] for change in CHANGES.values()}
    for task, correctness in before.items():
        if task in after and None not in (correctness, after[task]):
            changes[CHANGES[correctness == 1.0, after[task] == 1.0]].append(task)
    some = {task: change for change, tasks in changes.items() for task in tasks[:TASKS_PER_CHANGE]}
    return {change: len(tasks) for change, tasks in changes.items()}, some


def sampled_over_k(journal: JournalReader) -> schema.OverK | None:
    """pass@k of the base model and of the last version that was sampled; None without two samples of both."""
    versions = evaluated_versions(journal, HELDOUT, is_greedy=False)
    if len(versions) < 2 or versions[0] != 0:
        return None
    found = [_samples(_of(journal, step)) for step in (versions[0], versions[-1])]
    tasks = [task for task in found[0] if task in found[1]]
    tallies = [[_tally(of_tasks[task]) for task in tasks] for of_tasks in found]
    if any(max((tally.num_samples for tally in each), default=0) < 2 for each in tallies):
        return None
    compared = compare(["base", f"step {versions[-1]}"], tallies)
    return schema.OverK(
        sampled=compared["models"],
        curves=compared["curves"],
        contrasts=compared["contrasts"],
        sentences=compared["sentences"],
    )


def _of(journal: JournalReader, step: int) -> list[Answer]:
    return read_answers(journal, step, HELDOUT)


def _cut(text: str) -> str:
    return shortened(text, MOST_CHARACTERS)


def _samples(answers: Sequence[Answer]) -> dict[str, list[float]]:
    """Task -> the correctness of each sample with a verdict."""
    found: dict[str, list[float]] = {}
    for answer in answers:
        if answer.sample != GREEDY:
            graded = [] if answer.correctness is None else [answer.correctness]
            found.setdefault(answer.task_id, []).extend(graded)
    return found


def _tally(scores: Sequence[float]) -> Tally:
    """Without maj@k: which samples give equal answers is not stored."""
    return Tally(len(scores), sum(score == 1.0 for score in scores), None)
