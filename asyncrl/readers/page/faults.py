"""Verifier faults by cause, each with its first traceback: what a person would otherwise never see."""

from dataclasses import asdict
from typing import Any

from asyncrl.observe.metrics.warning_log import group_faults
from asyncrl.readers.page.runs import Run


def read_causes(run: Run) -> list[dict[str, Any]]:
    """The fields of each FaultCause, the most frequent first, with two more. `trace`: the first traceback,
    None where the verifier did not raise; `trajectory_id`: whose verdict it was, None where a retry gave one.
    """
    traces, retried = run.journal.fault_traces(), run.journal.retried_faults()
    retried_traces = {row["cause"]: row["trace"] or None for row in retried}
    causes = []
    for fault in group_faults(run.journal.faults(), retried):
        first = traces.get(fault.cause)
        trace = retried_traces.get(fault.cause) if first is None else first["trace"]
        of = None if first is None else first["trajectory_id"]
        causes.append({**asdict(fault), "trace": trace, "trajectory_id": of})
    return causes
