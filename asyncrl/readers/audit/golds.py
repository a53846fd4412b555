"""Golds and verifiers for the tasks of an audit: rows of data.train, or a file of golds by task id."""

import contextlib
import dataclasses
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asyncrl.data.row_use import RowUse
from asyncrl.data.rows import Row, Unanswered, train_rows
from asyncrl.errors import InputError
from asyncrl.recipe import Recipe
from asyncrl.records import Task, VerifierSpec
from asyncrl.system.text_file import decoded
from asyncrl.tasks.task_list import template_of
from asyncrl.tasks.verifier_cache import VerifierCache, reference_of
from verifiers import strict_json


@dataclass(frozen=True, slots=True)
class OtherGrader:
    """The differences from the grading that the run recorded."""

    verifier: str | None = None
    """None: each row's own, as its file is now."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of `verifier`; without one, changes to the options of the row's own."""
    golds: Mapping[str, Any] | None = None
    """Task id -> gold, in place of the row's."""

    def of(self, spec: VerifierSpec) -> VerifierSpec:
        """In place of a row's verifier."""
        if self.verifier is None:
            return spec if not self.options else VerifierSpec(spec.name, {**spec.options, **self.options})
        return VerifierSpec(self.verifier, self.options)


@dataclass(slots=True)
class AuditTasks:
    """Tasks as the other grader reads them, and those that it cannot read."""

    tasks: dict[str, Task] = field(default_factory=dict)
    """Task id -> task with its parsed gold, its prompt still empty."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Task id -> why its gold cannot be read."""
    recorded: set[str] = field(default_factory=set)
    """Names of the verifiers of these rows."""
    others: set[str] = field(default_factory=set)


def read_golds(path: Path) -> dict[str, Any]:
    """Task id -> gold, from JSON lines {"task_id": ..., "answer": ...}. Raises InputError with the line."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise InputError(f"--tests names {path}, which cannot be read: {error.strerror}.") from error
    found: dict[str, Any] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        text = decoded(line, str(path), line=number)
        try:
            row = strict_json.loads(text)
        except ValueError as error:
            raise InputError(f"{where}: not JSON: {error}.") from error
        if not isinstance(row, dict) or not isinstance(row.get("task_id"), str) or "answer" not in row:
            raise InputError(
                f'{where}: the line is {str(row)[:80]}, expected {{"task_id": "train:3", "answer": ...}}, '
                f"the answer as a data row has it."
            )
        if row["task_id"] in found:
            raise InputError(f"{where}: {row['task_id']} stands in an earlier line too, expected one gold.")
        found[row["task_id"]] = row["answer"]
    if not found:
        raise InputError(f"--tests names {path}, which holds no golds.")
    return found


def read_audit_tasks(
    recipe: Recipe,
    wanted: Collection[str],
    other: OtherGrader,
    verifiers: VerifierCache,
    *,
    what: str = "A response of asyncrl audit",
) -> AuditTasks:
    """The tasks with the ids `wanted`; `what` is graded again, for people. Raises InputError for data or a
    verifier that cannot be used."""
    ids, found, template = set(wanted), AuditTasks(), template_of(recipe)
    use = RowUse(takes_task=lambda spec: verifiers.takes_task(other.of(spec)))
    # What a verifier prints is no part of what a command prints.
    with contextlib.redirect_stdout(sys.stderr):
        for row in train_rows(recipe.data, recipe.verifying, use):
            if isinstance(row, Unanswered) or row.row_id not in ids:
                continue
            if template is not None:
                row = row._replace(prompt=template(row.prompt))
            verifiers.check_alone(other.of(row.verifier), what)
            _add(row, other, verifiers, found, has_turns=recipe.turns.is_on() or recipe.agent.is_on())
    return found


def _add(
    row: Row, other: OtherGrader, verifiers: VerifierCache, found: AuditTasks, *, has_turns: bool
) -> None:
    spec = other.of(row.verifier)
    if has_turns and verifiers.takes_task(spec):
        raise InputError(
            f'the verifier "{spec.name}" reads the conversation, and responses of runs with turns or an '
            f"agent are graded again by their last text alone. Name one that takes a response and its gold."
        )
    found.recorded.add(row.verifier.name)
    found.others.add(spec.name)
    gold = row.answer if other.golds is None else other.golds[row.row_id]
    verifier = verifiers.get(spec)
    try:
        verifiers.parse(verifier, gold, name=spec.name, where=row.where)
    except ValueError as error:
        found.unreadable[row.row_id] = str(error)
        return
    messages = () if isinstance(row.prompt, str) or row.columns is None else tuple(row.prompt)
    found.tasks[row.row_id] = Task(
        row.row_id, "", (), reference_of(verifier, gold), spec, messages=messages, row=row.columns or {}
    )


def with_prompt(task: Task, prompt: str) -> Task:
    """The task as its group was asked."""
    return dataclasses.replace(task, prompt=prompt)
