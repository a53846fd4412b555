"""The state of a run now, or its end: read from its folder alone, while it writes or after its end.

Joins status.json (the moment) with metrics.jsonl (what was measured, warned and alarmed). Does not print.
"""

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from asyncrl.errors import InputError
from asyncrl.journal.reader import find_journal
from asyncrl.journal.starts import recorded_end
from asyncrl.observe.metrics.warning_log import Warned, warnings_of
from asyncrl.observe.terminal.live import ETA_WINDOW_STEPS
from asyncrl.observe.terminal.postmortem import POST_MORTEM
from asyncrl.run.metrics_file import Metrics, Row, read_metrics
from asyncrl.run.status import (
    ENDS,
    QueueStatus,
    ServerStatus,
    Status,
    Waiting,
    is_running,
    read_status,
    silence_of,
    words_of_state,
)
from asyncrl.system.paths import nearest_run
from asyncrl.system.places import JOURNAL, METRICS, RECIPE, REPORT

NUM_WARNINGS = 3
NUM_ALARMS = 5
NOT_STARTED = "not started"
GONE = "no longer running"


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Accuracy of a held-out evaluation; shares with their 95% interval where it is known."""

    step: int
    greedy: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Told:
    """An alarm, as metrics.jsonl has it."""

    step: int | None
    text: str
    alarm: str
    """Name of the alarm."""
    is_on: bool
    """False for one that has ended."""


@dataclass(frozen=True, slots=True)
class CurrentRun:
    folder: str
    state: str
    """State as in status.json; of a run that could not say how it ended "finished" where nothing is left to
    do, else "no longer running"; or "not started"."""
    is_running: bool
    step: int
    total_steps: int
    seconds_left: float | None
    """Estimate from the last steps; None where the run trains no more, or no step was measured."""
    silence_seconds: float | None
    """Since status.json was written."""
    reward_mean: float | None
    """Mean reward of the last step."""
    num_faults: int
    """Verdicts of the batches that failed."""
    num_retried: int
    """Further faults of verifiers, whose retry gave a verdict."""
    first_accuracy: Accuracy | None
    last_accuracy: Accuracy | None
    waiting: Waiting
    queue: QueueStatus | None
    servers: list[ServerStatus]
    alarms: list[Told]
    """The last of those that are on, and of those that were, in order."""
    warnings: list[Warned]
    """The last ones, in order; counted over all starts, as on the page."""
    cause: str | None
    """Cause of the end of a run that failed."""
    report: str | None
    """Path of the report of a run that ended."""
    disk_free_bytes: int

    def json(self) -> dict[str, Any]:
        return asdict(self)


def read_run(folder: Path, metrics: Metrics | None = None) -> CurrentRun:
    """`metrics` are its rows, where they are read already. Raises InputError."""
    if not (folder / RECIPE).is_file():
        raise InputError(f"{folder} is not a run folder: it has no {RECIPE}.{nearest_run(folder)}")
    metrics = metrics or read_metrics(folder / METRICS)
    status = read_status(folder)
    state = NOT_STARTED if status is None else state_of(folder, status)
    evaluations = [row for row in metrics.evaluations if row.get("greedy_accuracy") is not None]
    report = folder / REPORT
    return CurrentRun(
        folder=str(folder),
        state=state,
        is_running=status is not None and is_running(status),
        step=0 if status is None else status["step"],
        total_steps=0 if status is None else status["total_steps"],
        seconds_left=None if status is None else _seconds_left(status, metrics),
        silence_seconds=None if status is None else silence_of(status),
        reward_mean=metrics.steps[-1].get("reward_mean") if metrics.steps else None,
        num_faults=_sum(metrics, "outcomes_fault"),
        num_retried=_sum(metrics, "faults_retried"),
        first_accuracy=_accuracy(evaluations[0]) if evaluations else None,
        last_accuracy=_accuracy(evaluations[-1]) if evaluations else None,
        waiting={"trainer": None, "rollouts": None} if status is None else status["waiting"],
        queue=None if status is None else status["queue"],
        servers=[] if status is None else status["servers"],
        alarms=alarms_of(metrics.events)[-NUM_ALARMS:],
        warnings=warnings_of(metrics.events)[:NUM_WARNINGS][::-1],
        cause=cause_of(folder) if state == "failed" else None,
        report=str(report) if state in ENDS and report.exists() else None,
        disk_free_bytes=shutil.disk_usage(folder).free,
    )


def _sum(metrics: Metrics, name: str) -> int:
    return sum(int(row.get(name) or 0) for row in metrics.steps)


def _accuracy(row: Row) -> Accuracy:
    return Accuracy(row["step"], row["greedy_accuracy"], row.get("greedy_low"), row.get("greedy_high"))


def _seconds_left(status: Status, metrics: Metrics) -> float | None:
    recent = [row.get("step_seconds") for row in metrics.steps[-ETA_WINDOW_STEPS:]]
    known = [float(seconds) for seconds in recent if seconds is not None]
    if not known or not is_running(status):
        return None
    return max(0, status["total_steps"] - status["step"]) * sum(known) / len(known)


def alarms_of(events: list[Row]) -> list[Told]:
    """The last row of each alarm, those that are on after those that were."""
    last: dict[str, Told] = {}
    for row in events:
        if row["event"] == "alarm":
            name = str(row.get("alarm"))
            # Popped first, so that it takes its new place in the order.
            last.pop(name, None)
            last[name] = Told(row.get("step"), str(row.get("text")), name, bool(row.get("is_on", True)))
    on = [told for told in last.values() if told.is_on]
    over = [told for told in last.values() if not told.is_on]
    return [*over, *on]


def state_of(folder: Path, status: Status) -> str:
    """As `CurrentRun.state`."""
    state = words_of_state(status)
    if state == GONE and _has_ended(folder):
        return "finished"
    return state


def _has_ended(folder: Path) -> bool:
    """Whether the journal records the end of the run; False for one that cannot be read."""
    try:
        journal = find_journal(folder / JOURNAL)
    except InputError:
        return False
    return journal is not None and recorded_end(journal) is not None


def cause_of(folder: Path) -> str | None:
    """The error that ended a failed run: the first section of the post-mortem, without its title."""
    try:
        lines = (folder / POST_MORTEM).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    end = lines.index("") if "" in lines else len(lines)
    return "\n".join(lines[2:end]) or None
