"""Watches a run's faults: the first of each cause is a warning; a verifier without verdicts ends the run.

A fault is never a wrong answer, so a verifier that always faults would drop every group, without end.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from asyncrl.errors import AsyncrlError
from asyncrl.journal import statements
from asyncrl.journal.counters import Statement
from asyncrl.loops.waits import now_seconds
from asyncrl.observe.metrics.fault_causes import cause_of
from asyncrl.records import Task
from verifiers.verdict import Verdict

log = logging.getLogger(__name__)

MIN_SECONDS = 20.0
"""Without a verdict before a run ends: what a verifier's server or a busy machine may take to come back."""
MOST_CAUSES = 20
"""Warned of in a run, so that a verifier that fails differently each time does not flood the terminal."""


class VerifierFailed(AsyncrlError):
    """A verifier gives no more verdicts; the message holds its own error."""


@dataclass(slots=True)
class _Row:
    """The faults of one verifier since its last verdict."""

    num_faults: int
    since_seconds: float


def retried_fault(task: Task, fault: Verdict) -> Statement:
    """Journals a fault whose retry gave a verdict."""
    return statements.retried(task.task_id, cause_of(fault.detail), fault.detail, fault.trace)


class FaultWatch:
    """One per run."""

    def __init__(self, max_in_a_row: int, *, clock: Callable[[], float] = now_seconds) -> None:
        self._max_in_a_row = max_in_a_row
        self._clock = clock
        self._rows: dict[str, _Row] = {}
        self._causes: set[str] = set()

    def answered(self, task: Task) -> None:
        """The task's verifier gave a verdict."""
        self._rows.pop(task.verifier.name, None)

    def failed(self, task: Task, detail: str) -> None:
        """It gave none. Raises VerifierFailed when that lasts too long."""
        name, now = task.verifier.name, self._clock()
        row = self._rows.setdefault(name, _Row(0, now))
        row.num_faults += 1
        if row.num_faults >= self._max_in_a_row and now - row.since_seconds >= MIN_SECONDS:
            raise VerifierFailed(
                f'the verifier "{name}" gave no verdict {row.num_faults} times in a row '
                f"(verifying.max_faults_in_a_row), the last time on a response to {task.task_id}: {detail}\n"
                f"Fix it (`asyncrl verify` tries it out) and run the same command again: the run resumes, "
                f"with every response that it has."
            )

    def gave_up(self, task: Task, detail: str) -> None:
        """All retries of a response are spent: a warning, once per cause."""
        if not self._is_first(f"{task.verifier.name}: {cause_of(detail)}"):
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
        if not self._is_first(f"{task.verifier.name}, retried: {cause_of(detail)}"):
            return
        log.warning(
            'the verifier "%s" failed on a response to %s and gave a verdict when it was asked again: %s. '
            "Further faults of this cause are counted, not shown.",
            task.verifier.name,
            task.task_id,
            detail,
        )

    def _is_first(self, cause: str) -> bool:
        """Whether to warn of this cause."""
        if cause in self._causes or len(self._causes) >= MOST_CAUSES:
            return False
        self._causes.add(cause)
        return True
