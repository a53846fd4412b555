"""The log of a run: its warnings, each once with its count, and its alarms, the latest first."""

from typing import TypedDict

from asyncrl.observe.metrics.warning_log import Warned, warnings_of
from asyncrl.readers.page.runs import Run
from asyncrl.run.metrics_file import Row

ALARM = "alarm"
RESUMED = "resumed"


class Log(TypedDict):
    warnings: list[Warned]
    alarms: list[Row]
    """Alarms as in metrics.jsonl: step, alarm, text, value, limit."""
    starts: list[Row]
    """Resumptions of the run: version and time_seconds."""


def read_log(run: Run) -> Log:
    events = run.metrics.read().events
    return Log(
        warnings=warnings_of(events),
        alarms=[row for row in reversed(events) if row["event"] == ALARM],
        starts=[row for row in reversed(events) if row["event"] == RESUMED],
    )
