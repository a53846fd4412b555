"""Grades drawn responses again, in killable workers as a run does. A fault is counted, never a verdict."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from asyncrl.errors import AsyncrlError
from asyncrl.journal.trained_responses import TrainedResponse
from asyncrl.readers.audit.drawing import Drawn
from asyncrl.readers.audit.golds import AuditTasks, with_prompt
from asyncrl.recipe import Recipe
from asyncrl.records import Task
from asyncrl.rollout.told_task import told_task
from asyncrl.system.faults_in_a_row import FaultsInARow
from verifiers.pool import VerifierPool
from verifiers.verdict import Outcome, Verdict

LANES_PER_WORKER = 8
"""Responses on their way at once: a verifier that waits for a server is no worker's."""


class NoVerdicts(AsyncrlError):
    """The other verifier fails on every response; the message holds its own error."""


@dataclass(frozen=True, slots=True)
class Regraded:
    response: TrainedResponse
    other: Verdict


async def grade_again(
    recipe: Recipe,
    drawn: Drawn,
    tasks: AuditTasks,
    found: dict[str, Regraded],
    told: Callable[[], None],
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
                _watch(faults, response, tasks.tasks[response.task_id].verifier.name, verdict)
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


def _watch(faults: FaultsInARow, response: TrainedResponse, name: str, verdict: Verdict) -> None:
    if verdict.outcome is not Outcome.FAULT:
        faults.answered(name)
    elif (number := faults.failed(name)) is not None:
        raise NoVerdicts(
            f'the verifier "{name}" gave no verdict on {number} responses in a row '
            f"(verifying.max_faults_in_a_row), the last time on {response.trajectory_id}: {verdict.detail}"
        )
