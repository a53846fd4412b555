"""Findings of an evaluation so far: the results of each model on each evaluation set, as JSON too."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asyncrl.errors import DiskError, InputError
from asyncrl.evaluation.evaluation_set import EvaluationSet
from asyncrl.evaluation.result import GradedResponse, Result
from asyncrl.journal.kept_answers import MOST_CHARACTERS, MOST_TASKS, ShownAnswer, ShownAnswers
from asyncrl.observe.metrics.sample_curves import Compared, Contrast, Tally, compare_rows, curves_of
from asyncrl.observe.terminal.model_differences import differences
from asyncrl.records import Task
from asyncrl.system.files import write_whole
from asyncrl.system.words import shortened
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


class Comparison:
    """`models` are labels, the first the one that others are compared with. With `file` every result is
    written there as it comes. Raises InputError for a file that cannot be written."""

    def __init__(
        self, models: Sequence[str], eval_sets: Sequence[EvaluationSet], *, file: Path | None = None
    ) -> None:
        self.models = list(models)
        self.eval_sets = list(eval_sets)
        self._file = file
        self._rows: dict[tuple[str, str], dict[str, Any]] = {}
        self._current: tuple[str, EvaluationSet] | None = None
        self._num_graded = 0
        if file is not None:
            try:
                self._write(file)
            except DiskError as error:
                raise InputError(str(error)) from error

    def begin(self, model: str, eval_set: EvaluationSet) -> None:
        self._current, self._num_graded = (model, eval_set), 0

    def graded(self, num_responses: int) -> None:
        """Adds to the responses of the evaluation set that has begun."""
        self._num_graded += num_responses

    def end(
        self,
        model: str,
        eval_set: EvaluationSet,
        result: Result,
        tallies: Sequence[Tally] = (),
        *,
        num_kept: int = 0,
    ) -> dict[str, Any]:
        """The row of the result; `tallies` are those of its samples, `num_kept` of the responses were there
        before. Raises DiskError."""
        row = {**eval_set.describe(), **result.row(), "num_kept": num_kept}
        if tallies:
            row |= {"curves": curves_of(tallies), "tallies": [tally.as_json() for tally in tallies]}
        self._rows[model, eval_set.name] = row
        self._current = None
        if self._file is not None:
            self._write(self._file)
        return row

    def rows(self, eval_set: EvaluationSet) -> list[dict[str, Any] | None]:
        """One per model; None where it was not measured."""
        return [self._rows.get((model, eval_set.name)) for model in self.models]

    def compared(self, eval_set: EvaluationSet) -> Compared | None:
        """The curves of the models that were measured by samples; None where there are none."""
        pairs = zip(self.models, self.rows(eval_set), strict=True)
        return compare_rows([(model, row) for model, row in pairs if row is not None])

    def progress(self) -> str:
        """Finished evaluation sets, and the one that was under way, in one sentence."""
        done = ", ".join(f"{eval_set} on {model}" for model, eval_set in self._rows) or "nothing"
        text = f"Finished: {done}"
        if self._current is not None:
            model, eval_set = self._current
            graded = f"{self._num_graded:,} of {eval_set.num_responses:,} responses"
            text += f"; {eval_set.name} on {model} was at {graded}"
        where = f" Results so far: {self._file}" if self._file is not None and self._rows else ""
        return f"{text}.{where}"

    def as_json(self) -> dict[str, Any]:
        return {
            "models": self.models,
            "benchmarks": [self._set_json(eval_set) for eval_set in self.eval_sets],
        }

    def _set_json(self, eval_set: EvaluationSet) -> dict[str, Any]:
        rows = {
            model: row for model, row in zip(self.models, self.rows(eval_set), strict=True) if row is not None
        }
        description = eval_set.describe()
        first = rows.get(self.models[0])
        found: dict[str, dict[str, Any]] = {}
        for model, row in rows.items():
            if first is not None and row is not first:
                pairs = differences(first, row).items()
                found[model] = {name: dataclasses.asdict(difference) for name, difference in pairs}
        compared = self.compared(eval_set)
        contrasts = {} if compared is None else _by_model(compared)
        return {
            **description,
            "tasks": [task.task_id for task in eval_set.tasks],
            "results": {
                model: {name: value for name, value in row.items() if name not in description}
                for model, row in rows.items()
            },
            "differences": found,
            "contrasts": contrasts,
            "sentences": [] if compared is None else compared["sentences"],
        }

    def _write(self, file: Path) -> None:
        try:
            write_whole(file, json.dumps(self.as_json(), indent=1))
        except OSError as error:
            raise DiskError(
                f"--out is {file}, which could not be written: {error.strerror}. Name a file in a folder "
                f"that is there and has room."
            ) from error


def _by_model(compared: Compared) -> dict[str, dict[str, Contrast]]:
    """Model -> measure -> its curve less the first model's."""
    found: dict[str, dict[str, Contrast]] = {}
    for measure, contrasts in compared["contrasts"].items():
        for model, contrast in zip(compared["models"], contrasts, strict=True):
            if contrast is not None:
                found.setdefault(model, {})[measure] = contrast
    return found
