"""The seam between a run and those who are told of it."""

from typing import Any, Protocol


class Observer(Protocol):
    """Who is told what happened: the terminal, the metrics file."""

    def step(self, row: dict[str, Any]) -> None:
        """A training step is over; `row` as in metrics.jsonl."""
        ...

    def evaluation(self, row: dict[str, Any]) -> None:
        """An evaluation is over."""
        ...

    def note(self, text: str) -> None:
        """Something that a person should know."""
        ...
