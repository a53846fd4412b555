"""Keeps the alarms of a run as its terminal and file do, in a list."""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from asyncrl.observe.alarms.watch import AlarmWatch, rules_of
from asyncrl.observe.metrics.metrics_file import Metrics
from asyncrl.recipe import Alarms

GROUPS = 10


class AlarmLog(logging.Handler):
    """Context manager. `rows` are the events that metrics.jsonl would hold."""

    def __init__(
        self, *, restored: Metrics | None = None, repeated_groups_per_batch: int = 0, **keys: Any
    ) -> None:
        super().__init__(logging.WARNING)
        rules = rules_of(
            Alarms(**keys),
            groups_per_batch=GROUPS,
            repeated_groups_per_batch=repeated_groups_per_batch,
        )
        self.watch = AlarmWatch(rules, run="run")
        if restored is not None:
            self.watch.restore(restored)
        self.rows: list[dict[str, Any]] = []
        self.texts: list[str] = []
        self.num_records = 0
        """Logged, whether or not they say something new."""

    def emit(self, record: logging.LogRecord) -> None:
        self.num_records += 1
        fields = self.watch.admit(record.alarm)  # type: ignore[attr-defined]
        if fields is not None:
            self.rows.append(fields)
            self.texts.append(record.getMessage())

    def run(self, rows: Iterable[Mapping[str, Any]]) -> list[tuple[str, int, bool]]:
        """What begins and ends over these steps and evaluations (those with greedy_accuracy)."""
        with self:
            for row in rows:
                (self.watch.evaluation if "greedy_accuracy" in row else self.watch.step)(row)
        return [(row["alarm"], row["step"], row["is_on"]) for row in self.rows]

    def __enter__(self) -> "AlarmLog":
        logging.getLogger("asyncrl.observe.alarms").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("asyncrl.observe.alarms").removeHandler(self)
