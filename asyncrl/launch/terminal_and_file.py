"""Reports of a run to people: rows, alarms and warnings, at the terminal and in metrics.jsonl."""

import contextlib
import logging
from collections.abc import Iterable
from typing import Self

from asyncrl.errors import DiskError
from asyncrl.launch.meters.memory import MemoryLimitMeter, MemoryMeter
from asyncrl.observe.alarms.learning import EmptySteps
from asyncrl.observe.alarms.rule import Alarm
from asyncrl.observe.alarms.watch import ALARM, AlarmWatch
from asyncrl.observe.metrics.mishaps import RecentEvents, WarningLog
from asyncrl.observe.terminal.live import LiveLine
from asyncrl.run.metrics_file import DROPPED, MetricsWriter, Row


class TerminalAndFile(logging.Handler):
    """Tells the person at the terminal and metrics.jsonl: steps, evaluations, alarms, warnings of all parts.

    Context manager: within it, warnings of asyncrl's loggers come here and not to standard error.
    """

    def __init__(
        self,
        live: LiveLine,
        metrics: MetricsWriter,
        alarms: AlarmWatch,
        trained: EmptySteps,
        memory: MemoryMeter,
        events: RecentEvents,
        *,
        step: int,
    ) -> None:
        """`events` hear of alarms too, for the post-mortem. `step` is the one that the run resumes at: until
        the next one ends, warnings stand there."""
        super().__init__(logging.WARNING)
        self._live = live
        self._metrics = metrics
        self._warnings = WarningLog(metrics, step=step)
        self._alarms = alarms
        self._trained = trained
        self._memory = memory
        self._limit = MemoryLimitMeter()
        self._events = events

    def step(self, row: Row) -> None:
        """Raises TrainedNothing, which ends the run."""
        row = {**row, **self._memory.take_row(), **self._limit.row()}
        self._metrics.step(row)
        self._warnings.step = int(row["step"])
        self._live.step(row)
        self._tell(self._alarms.step(row))
        self._trained.step(row)

    def evaluation(self, row: Row) -> None:
        self._metrics.evaluation(row)
        self._live.evaluation(row)
        self._alarms.evaluation(row)

    def benchmark(self, row: Row) -> None:
        self._metrics.benchmark(row)
        self._live.benchmark(row)

    def dropped(self, row: Row) -> None:
        self._metrics.event(DROPPED, **row)
        self._live.dropped(row)
        self._tell(self._alarms.dropped(row))

    def alarm(self, alarm: Alarm) -> None:
        fields = self._alarms.admit(alarm)
        if fields is None:
            return
        self._events.add(alarm.words())
        self._live.note(alarm.words(), style="bold yellow" if alarm.is_on else "dim")
        self._metrics.event(ALARM, **fields)

    def _tell(self, alarms: Iterable[Alarm]) -> None:
        for alarm in alarms:
            self.alarm(alarm)

    def emit(self, record: logging.LogRecord) -> None:
        """Never raises: a part that warns must not fail by it, least of all while it stops the run.

        After an error of the disk or the terminal, the next row ends the run.
        """
        text = record.getMessage()
        try:
            self._warnings.add(text, kind=str(record.msg))
        except DiskError as error:
            text += f"\n{error}"
        try:
            self._live.note(text)
        except OSError:
            # The terminal is gone, say after a SIGHUP.
            self.handleError(record)

    def __enter__(self) -> Self:
        log_of_all = logging.getLogger("asyncrl")
        log_of_all.addHandler(self)
        log_of_all.propagate = False
        return self

    def __exit__(self, *_: object) -> None:
        log_of_all = logging.getLogger("asyncrl")
        log_of_all.removeHandler(self)
        log_of_all.propagate = True
        # Whatever ended the run must not be hidden by a full disk.
        with contextlib.suppress(DiskError):
            self._warnings.close()
