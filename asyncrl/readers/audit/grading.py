"""Drawn responses of a run graded again, in killable workers as a run does: which, by what golds, with which
verdicts.
"""

import asyncio
import contextlib
import dataclasses
import random
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from asyncrl.data.row_use import RowUse
from asyncrl.data.rows import Row, Unanswered, train_rows
from asyncrl.errors import AsyncrlError, InputError
from asyncrl.journal.reader import JournalReader
from asyncrl.journal.responses import ANY_STEP, TrainedResponse, read_recorded, read_responses
from asyncrl.recipe import Recipe
from asyncrl.records import Task, VerifierSpec
from asyncrl.rollout.told_task import told_task
from asyncrl.system.files import decoded
from asyncrl.system.plugins import FaultsInARow
from asyncrl.tasks.task_list import template_of
from asyncrl.tasks.verifier_cache import VerifierCache, reference_of
from verifiers import strict_json
from verifiers.pool import VerifierPool
from verifiers.verdict import Outcome, Verdict


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


@dataclass(frozen=True, slots=True)
class Drawn:
    responses: list[TrainedResponse]
    """In a random order: the first ones are a sample of all."""
    num_trained: int
    """Responses that it was drawn from, compacted ones left out."""
    num_compacted: int
    """Left out, for their texts are no longer kept."""
    num_without_gold: int
    """Left out, for --tests has no gold for their task."""


def draw(
    journal: JournalReader,
    other: OtherGrader,
    *,
    most: int,
    seed: int,
    steps: tuple[int, int] | None = None,
    has_dropped: bool = False,
) -> Drawn:
    """At most `most` responses. Raises InputError where there is none to grade."""
    recorded = read_recorded(journal, steps=steps or ANY_STEP, has_dropped=has_dropped)
    kept = [response for response in recorded if not response.is_compacted]
    golds = other.golds
    graded = kept if golds is None else [response for response in kept if response.task_id in golds]
    if not graded:
        raise InputError(_why_none(journal, len(recorded), len(kept), steps))
    chosen = random.Random(seed).sample(graded, min(most, len(graded)))
    responses = read_responses(journal, [response.trajectory_id for response in chosen])
    return Drawn(responses, len(graded), len(recorded) - len(kept), len(kept) - len(graded))


def _why_none(journal: JournalReader, num_recorded: int, num_kept: int, steps: tuple[int, int] | None) -> str:
    if num_kept:
        return (
            f"--tests has no gold for any task of {num_kept:,} responses. A task_id is the journal's, "
            f"such as {read_recorded(journal)[0].task_id}."
        )
    if num_recorded:
        return (
            f"{journal.path}: the texts of all {num_recorded:,} responses were compacted. Runs keep more "
            f"with a larger replay.keep_steps."
        )
    there = journal.step_range()
    if there is None:
        return f"{journal.path}: no response was trained yet."
    asked = "" if steps is None else f"steps {steps[0]} to {steps[1]} trained none; "
    return f"{journal.path}: {asked}the run trained steps {there[0]} to {there[1]}."


LANES_PER_WORKER = 8
"""Responses on their way at once: a verifier that waits for a server is no worker's."""


class NoVerdicts(AsyncrlError):
    """The other verifier fails on every response; the message holds its own error."""


@dataclass(frozen=True, slots=True)
class Regraded:
    response: TrainedResponse
    other: Verdict


async def grade_again(
    recipe: Recipe, drawn: Drawn, tasks: AuditTasks, found: dict[str, Regraded], told: Callable[[], None]
) -> None:
    """Adds each response whose task has a gold to `found`, by its trajectory id, as its verdict comes, and
    calls `told`. Raises NoVerdicts within an ExceptionGroup."""
    verifying = recipe.verifying
    waiting = iter([response for response in drawn.responses if response.task_id in tasks.tasks])
    faults = FaultsInARow(verifying.max_faults_in_a_row)
    async with VerifierPool(verifying.num_workers, verifying.timeout_seconds) as pool:
        grade = partial(_verdict, pool, recipe)

        async def lane() -> None:
            for response in waiting:
                verdict = await grade(response, with_prompt(tasks.tasks[response.task_id], response.prompt))
                found[response.trajectory_id] = Regraded(response, verdict)
                told()
                name = tasks.tasks[response.task_id].verifier.name
                if verdict.outcome is not Outcome.FAULT:
                    faults.answered(name)
                elif (number := faults.failed(name)) is not None:
                    raise NoVerdicts(
                        f'the verifier "{name}" gave no verdict on {number} responses in a row '
                        f"(verifying.max_faults_in_a_row), the last time on {response.trajectory_id}: "
                        f"{verdict.detail}"
                    )
                # Verdicts that need no worker must leave room for Ctrl-C.
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as lanes:
            for _ in range(verifying.num_workers * LANES_PER_WORKER):
                lanes.create_task(lane())


async def _verdict(pool: VerifierPool, recipe: Recipe, response: TrainedResponse, task: Task) -> Verdict:
    """The verdict; a fault after rollout.max_fault_retries."""
    for _ in range(recipe.rollout.max_fault_retries + 1):
        verdict = await pool.verify(
            task.verifier.name,
            task.verifier.options,
            response.text,
            task.reference,
            folder=recipe.verifying.own_files(),
            task=partial(told_task, task, response.text),
        )
        if verdict.outcome is not Outcome.FAULT:
            break
    return verdict
