"""Keeps the alarms of a run as its terminal and file do, in a list."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from asyncrl.observe.alarms.rule import Alarm
from asyncrl.observe.alarms.watch import AlarmWatch, rules_of
from asyncrl.recipe import Alarms
from asyncrl.run.metrics_file import Metrics

GROUPS = 10


class AlarmLog:
    """`rows` are the events that metrics.jsonl would hold."""

    def __init__(
        self, *, restored: Metrics | None = None, critic_clip: float = math.inf, **keys: Any
    ) -> None:
        rules = rules_of(Alarms(**keys), groups_per_batch=GROUPS, critic_clip=critic_clip)
        self.watch = AlarmWatch(rules, run="run")
        if restored is not None:
            self.watch.restore(restored)
        self.rows: list[dict[str, Any]] = []
        self.texts: list[str] = []
        self.num_found = 0
        """Heard, whether or not they say something new."""

    def run(self, rows: Iterable[Mapping[str, Any]]) -> list[tuple[str, int, bool]]:
        """What begins and ends over these steps and evaluations (those with greedy_accuracy)."""
        for row in rows:
            if "greedy_accuracy" in row:
                self.watch.evaluation(row)
            else:
                self.hear(self.watch.step(row))
        return [(row["alarm"], row["step"], row["is_on"]) for row in self.rows]

    def hear(self, alarms: Iterable[Alarm]) -> None:
        for alarm in alarms:
            self.num_found += 1
            fields = self.watch.admit(alarm)
            if fields is not None:
                self.rows.append(fields)
                self.texts.append(alarm.words())
