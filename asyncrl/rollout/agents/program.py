"""The seam between a trajectory and the agent's program that makes it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from asyncrl.records import Task


@dataclass(frozen=True, slots=True)
class Exit:
    """How an agent's program ended."""

    code: int
    """Its exit code, negative for a signal; 0 is well."""
    detail: str = ""
    """The end of what it printed, or why it did not end well."""
    score: float | None = None
    """Raw correctness in [0, 1] that it gave, where it may."""
    is_lost: bool = False
    """Whether another trajectory may have ended it, whose process it shared: it is started again, once, in a
    process of its own, and no fault is counted."""


@dataclass(frozen=True, slots=True)
class Access:
    """How an agent reaches the model."""

    base_url: str
    """Ends in /v1."""
    api_key: str
    """Good for one trajectory, until that ends."""


class Program(Protocol):
    def exit(self) -> Exit | None:
        """None while it runs."""
        ...

    async def end(self) -> None:
        """Kills it and what it started, and removes its files. May be called again."""
        ...


class Programs(Protocol):
    """Starts agents: processes in a run, coroutines in tests."""

    async def start(self, task: Task, access: Access, ended: Callable[[], None]) -> Program:
        """`ended` is called once the program has exited. Raises OSError where it cannot start."""
        ...
