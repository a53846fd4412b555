"""Watches the verifiers of a run: the first fault of each cause is a warning, a verifier without verdicts
ends the run, and one that is silent while responses wait is named."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from asyncrl.errors import AsyncrlError
from asyncrl.journal import statements
from asyncrl.journal.connection import Statement
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


FIRST_SECONDS = 10.0
"""Without any verdict of a verifier until it is named; then each time that the silence has doubled."""
LOOK_SECONDS = 2.0


@dataclass(slots=True)
class _Silence:
    """The silence of one verifier while responses wait for it."""

    since_seconds: float
    """The last verdict, or the first response that waits."""
    num_waiting: int = 0
    told_seconds: float = 0.0
    """How long it had lasted when it was told; 0 where it was not."""


class VerdictWaits:
    """Names a verifier that gives no verdict while responses wait for it: nothing else tells a slow verifier
    from a run that hangs."""

    def __init__(self, *, clock: Callable[[], float] = now_seconds) -> None:
        self._clock = clock
        self._silences: dict[str, _Silence] = {}

    @contextlib.contextmanager
    def waiting(self, verifier: str, num_responses: int = 1) -> Iterator[None]:
        """The block ends with a verdict on each of the responses, or without one where it raises."""
        silence = self._silences.setdefault(verifier, _Silence(self._clock()))
        silence.num_waiting += num_responses
        try:
            yield
            now = self._clock()
            if silence.told_seconds:
                seconds = now - silence.since_seconds
                log.warning('the verifier "%s" answers again, after %.0f s.', verifier, seconds)
            silence.since_seconds, silence.told_seconds = now, 0.0
        finally:
            silence.num_waiting -= num_responses
            if not silence.num_waiting:
                del self._silences[verifier]

    def look(self) -> None:
        """Names the verifiers that have been silent for too long; called every few seconds."""
        for verifier, silence in self._silences.items():
            seconds = self._clock() - silence.since_seconds
            if seconds < max(FIRST_SECONDS, 2 * silence.told_seconds):
                continue
            silence.told_seconds = seconds
            log.warning(
                'waiting for the verifier "%s": %.0f s without a verdict, %d responses wait.',
                verifier,
                seconds,
                silence.num_waiting,
            )

    async def watch(self) -> None:
        """Looks, without end."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.look()
