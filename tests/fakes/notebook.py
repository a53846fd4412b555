"""An observer that remembers what it is told."""

from typing import Any

from asyncrl.observe.alarms.rule import Alarm


class Notebook:
    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []
        self.evaluations: list[dict[str, Any]] = []
        self.benchmarks: list[dict[str, Any]] = []
        self.drops: list[dict[str, Any]] = []
        self.alarms: list[Alarm] = []

    def step(self, row: dict[str, Any]) -> None:
        self.steps.append(row)

    def evaluation(self, row: dict[str, Any]) -> None:
        self.evaluations.append(row)

    def benchmark(self, row: dict[str, Any]) -> None:
        self.benchmarks.append(row)

    def dropped(self, row: dict[str, Any]) -> None:
        self.drops.append(row)

    def alarm(self, alarm: Alarm) -> None:
        self.alarms.append(alarm)
