"""Verifier faults by cause, each with its first traceback: what a person would otherwise never see."""

from typing import TypedDict

from asyncrl.observe.metrics.fault_causes import group_faults
from asyncrl.readers.page.runs import Run


class Cause(TypedDict):
    cause: str
    num_verdicts: int
    num_retried: int
    """Further faults, whose retry gave a verdict."""
    task_id: str
    """Task of the first verdict."""
    detail: str
    """Detail of the first verdict."""
    trace: str | None
    """The first traceback; None where the verifier did not raise."""
    trajectory_id: str | None
    """Trajectory whose verdict raised it; None where a retry gave one."""


def read_causes(run: Run) -> list[Cause]:
    """The most frequent first."""
    traces, retried = run.journal.fault_traces(), run.journal.retried_faults()
    retried_traces = {row["cause"]: row["trace"] or None for row in retried}
    causes = []
    for fault in group_faults(run.journal.faults(), retried):
        first = traces.get(fault.cause)
        causes.append(
            Cause(
                cause=fault.cause,
                num_verdicts=fault.num_verdicts,
                num_retried=fault.num_retried,
                task_id=fault.task_id,
                detail=fault.detail,
                trace=retried_traces.get(fault.cause) if first is None else first["trace"],
                trajectory_id=None if first is None else first["trajectory_id"],
            )
        )
    return causes
