"""The seam between a run and those who are told of it."""

from typing import Any, Protocol


class Observer(Protocol):
    """Receives what happens in a run: the terminal, the metrics file."""

    def step(self, row: dict[str, Any]) -> None:
        """A training step ended; `row` as in metrics.jsonl."""
        ...

    def evaluation(self, row: dict[str, Any]) -> None:
        """An evaluation ended."""
        ...

    def note(self, text: str) -> None:
        """Something that a person should know."""
        ...
