"""A stage that is shown only if it takes long: most data is read in less than a second."""

import contextlib
import time
from types import TracebackType

from rich.console import Console

from asyncrl.observe.terminal.stage import Stage, stage

SHOWN_AFTER_SECONDS = 3.0


class LateStage:
    """Progress on standard error, once the block has taken SHOWN_AFTER_SECONDS; a context manager."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._began = time.monotonic()
        self._stage: Stage | None = None
        self._open = contextlib.ExitStack()

    def show(self, what: str, *, done: float = 0.0, total: float | None = None) -> None:
        """`what` stands after the title; `total` is None where it is not known."""
        if self._stage is None:
            if time.monotonic() - self._began < SHOWN_AFTER_SECONDS:
                return
            console = Console(stderr=True, highlight=False)
            self._stage = self._open.enter_context(stage(self._title, console=console, began=self._began))
            self._stage.count_from(done)
        self._stage.move(f"{self._title}: {what}", done, total)

    def __enter__(self) -> "LateStage":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        self._open.__exit__(kind, error, frames)
