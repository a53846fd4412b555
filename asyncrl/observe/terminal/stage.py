"""Progress of stages before the first step that take more than a few seconds: set-up, base model, servers.

On a terminal, a bar that ends as one line; elsewhere, few plain lines. Measures only time.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

from asyncrl.observe.metrics.formats import duration
from asyncrl.observe.terminal.live import has_terminal
from asyncrl.system.rounding import as_percent

PLAIN_INTERVAL_SECONDS = 10.0
"""Between two lines of one stage without a terminal, at first."""
PLAIN_INTERVAL_SHARE = 1 / 6
"""Share of the time that the stage has taken: an hour of it takes about 25 lines."""


class Stage:
    """A running stage. `report` has the signature that `prepare.target` functions call."""

    def __init__(self, name: str, total: float | None, *, show: Callable[["Stage"], None]) -> None:
        self.name = name
        self.total = total
        """None while unknown."""
        self.done = 0.0
        self._show = show

    def advance(self, amount: float = 1.0) -> None:
        self.done += amount
        self._show(self)

    def report(self, name: str, done: float, total: float) -> None:
        """Progress of the part of the stage called `name`."""
        self.name, self.done, self.total = name, done, total
        self._show(self)


@contextmanager
def stage(
    name: str,
    total: float | None = None,
    *,
    console: Console | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Stage]:
    """Shows `name` as running until the block ends, then how long it took, or that it failed.

    Prints nothing for a stage that is stopped: the program that stopped it, or was asked to, says that.
    """
    console = console or Console(highlight=False)
    began, is_drawn = clock(), has_terminal(console)
    try:
        with _terminal(name, total, console) if is_drawn else _plain(name, total, console, clock) as it:
            yield it
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise
    except BaseException:
        words = f"[red]failed[/]  {name} after {duration(clock() - began)}"
        console.print(words, highlight=False, soft_wrap=not is_drawn)
        raise
    words = f"[green]done[/]    {name} in {duration(clock() - began)}"
    console.print(words, highlight=False, soft_wrap=not is_drawn)


@contextmanager
def _terminal(name: str, total: float | None, console: Console) -> Iterator[Stage]:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        TaskProgressColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(name, total=total)

        def show(it: Stage) -> None:
            progress.update(task, description=it.name, completed=it.done, total=it.total)

        yield Stage(name, total, show=show)


@contextmanager
def _plain(name: str, total: float | None, console: Console, clock: Callable[[], float]) -> Iterator[Stage]:
    console.print(f"start   {name}", highlight=False, soft_wrap=True)
    last = began = clock()

    def show(it: Stage) -> None:
        nonlocal last
        interval = max(PLAIN_INTERVAL_SECONDS, PLAIN_INTERVAL_SHARE * (last - began))
        if clock() - last >= interval and it.total:
            last = clock()
            words = f"        {it.name} {as_percent(it.done / it.total)}"
            console.print(words, highlight=False, soft_wrap=True)

    yield Stage(name, total, show=show)
