"""Watches a run's faults: the first of each cause is a warning; a verifier without verdicts ends the run."""

import logging
from collections.abc import Callable

from asyncrl.errors import AsyncrlError
from asyncrl.journal import statements
from asyncrl.journal.counters import Statement
from asyncrl.loops import now_seconds
from asyncrl.records import Task
from asyncrl.system.plugins import FaultsInARow, cause_of
from verifiers.verdict import Verdict

log = logging.getLogger(__name__)


class VerifierFailed(AsyncrlError):
    """A verifier gives no more verdicts; the message holds its own error."""


def retried_fault(task: Task, fault: Verdict) -> Statement:
    """Journals a fault whose retry gave a verdict."""
    return statements.retried(task.task_id, cause_of(fault.detail), fault.detail, fault.trace)


class FaultWatch:
    """One per run."""

    def __init__(self, max_in_a_row: int, *, clock: Callable[[], float] = now_seconds) -> None:
        self._in_a_row = FaultsInARow(max_in_a_row, clock)

    def answered(self, task: Task) -> None:
        """The task's verifier gave a verdict."""
        self._in_a_row.answered(task.verifier.name)

    def failed(self, task: Task, detail: str) -> None:
        """It gave none. Raises VerifierFailed when that lasts too long."""
        number = self._in_a_row.failed(task.verifier.name)
        if number is not None:
            raise VerifierFailed(
                f'the verifier "{task.verifier.name}" gave no verdict {number} times in a row '
                f"(verifying.max_faults_in_a_row), the last time on a response to {task.task_id}: {detail}\n"
                f"Fix it (`asyncrl verify` tries it out) and run the same command again: the run resumes, "
                f"with every response that it has."
            )

    def gave_up(self, task: Task, detail: str) -> None:
        """All retries of a response are spent: a warning, once per cause."""
        if not self._in_a_row.is_first(task.verifier.name, detail):
            return
        log.warning(
            'no verdict of the verifier "%s" on a response to %s: %s. It leaves its group; further faults of '
            "this cause are counted, not shown.",
            task.verifier.name,
            task.task_id,
            detail,
        )

    def retried(self, task: Task, detail: str) -> None:
        """A fault of a response whose retry gave a verdict: a warning, once per cause."""
        if not self._in_a_row.is_first(f"{task.verifier.name}, retried", detail):
            return
        log.warning(
            'the verifier "%s" failed on a response to %s and gave a verdict when it was asked again: %s. '
            "Further faults of this cause are counted, not shown.",
            task.verifier.name,
            task.task_id,
            detail,
        )
