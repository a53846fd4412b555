"""The seam between a run and the receivers of its numbers.

Anything else that a person should read meanwhile is logged, as a warning.
"""

from typing import Any, Protocol

from asyncrl.observe.alarms.rule import Alarm


class Observer(Protocol):
    """Receives what happens in a run: the terminal, the metrics file."""

    def step(self, row: dict[str, Any]) -> None:
        """A training step ended; `row` as in metrics.jsonl."""
        ...

    def evaluation(self, row: dict[str, Any]) -> None:
        """A held-out evaluation ended."""
        ...

    def benchmark(self, row: dict[str, Any]) -> None:
        """A benchmark was measured, before or after training."""
        ...

    def dropped(self, row: dict[str, Any]) -> None:
        """Many groups were dropped while a step waits for its batch; counts as `DroppedGroups` has them."""
        ...

    def alarm(self, alarm: Alarm) -> None:
        """An alarm begins or ends; the receiver leaves out what is known."""
        ...
