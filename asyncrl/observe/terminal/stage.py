"""Progress of stages before the first step that take more than a few seconds: set-up, base model, data."""

import asyncio
import contextlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from asyncrl.observe.terminal.table import duration, has_terminal
from asyncrl.system.files import write_whole
from asyncrl.system.places import cache_folder
from asyncrl.system.words import as_percent

# Owns the file past_seconds.json in asyncrl's cache. It is an estimate's memory and nothing more: where it
# cannot be read or written, there is no estimate.
KEPT = 5
"""Last times of one thing: their median is expected next."""
MOST_THINGS = 200
"""Those noted longest ago are forgotten."""


class PastSeconds:
    """Seconds of earlier times, by what decides how long it takes."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file or cache_folder("past_seconds.json")

    def expected(self, like: str) -> float | None:
        """The median of the last times, None without any."""
        known = self._read().get(like)
        return statistics.median(known) if known else None

    def note(self, like: str, seconds: float) -> None:
        known = self._read()
        known[like] = [*known.pop(like, []), round(seconds, 2)][-KEPT:]
        newest = dict(list(known.items())[-MOST_THINGS:])
        # A home that is full or read-only costs the estimate and nothing else. Of two that write at once, one
        # is forgotten.
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._file, json.dumps(newest, indent=1) + "\n")

    def _read(self) -> dict[str, list[float]]:
        try:
            found = json.loads(self._file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        things = found.items() if isinstance(found, dict) else ()
        return {
            like: found
            for like, found in things
            if isinstance(found, list) and all(isinstance(each, int | float) for each in found)
        }


PLAIN_INTERVAL_SECONDS = 10.0
"""Between two lines of one stage without a terminal, at first."""
PLAIN_INTERVAL_SHARE = 1 / 6
"""Share of the time that the stage has taken: an hour of it takes about 25 lines."""


RATED_AFTER_SECONDS = 1.0
"""Until then counts say nothing of how long the rest takes."""


class Stage:
    """A running stage. `report` has the signature that `prepare.target` functions call."""

    def __init__(
        self,
        name: str,
        total: float | None,
        *,
        clock: Callable[[], float],
        usual_seconds: float | None = None,
    ) -> None:
        """`usual_seconds`: how long the whole stage takes, as far as it is known."""
        self.name = name
        self.total = total
        """None while unknown."""
        self.done = 0.0
        self.is_stopped = False
        """Set where the block ends because it was asked to stop: it is not done."""
        self.on_change: Callable[[], object] = lambda: None
        self.clock = clock
        self.usual_seconds = usual_seconds
        self._began = self._counts_from = clock()
        self._counted = 0.0
        """`done` at that time."""

    def advance(self, amount: float = 1.0) -> None:
        self.move(self.name, self.done + amount, self.total)

    def report(self, name: str, done: float, total: float) -> None:
        """Progress of the part of the stage called `name`."""
        if name != self.name or done < self.done:
            self.count_from(done)
        self.move(name, done, total)

    def count_from(self, done: float) -> None:
        """The pace is measured from now on: so much was done before."""
        self._counts_from, self._counted = self.clock(), done

    def move(self, name: str, done: float, total: float | None) -> None:
        """Shows other words, and how much is done of the same part."""
        self.name, self.done, self.total = name, done, total
        self.on_change()

    def share(self) -> str:
        """A percentage; empty while the total is unknown."""
        return as_percent(self.done / self.total) if self.total else ""

    def left(self) -> str:
        """The likely rest: by counts that of the part, else that of the whole; empty where it is unknown."""
        seconds, gained = self.clock() - self._counts_from, self.done - self._counted
        if self.total and gained > 0 and seconds >= RATED_AFTER_SECONDS:
            return f"{duration(seconds * max(0.0, self.total - self.done) / gained)} left"
        if self.usual_seconds is None:
            return ""
        left = self.usual_seconds - (self.clock() - self._began)
        return f"{duration(left)} left" if left > 0 else f"usually {duration(self.usual_seconds)}"


@contextmanager
def stage(
    name: str,
    total: float | None = None,
    *,
    like: str | None = None,
    console: Console | None = None,
    clock: Callable[[], float] = time.monotonic,
    past: PastSeconds | None = None,
    began: float | None = None,
) -> Iterator[Stage]:
    """Shows `name` as running until the block ends, then how long it took, or that it failed.

    `like` names what decides how long it takes: `past` remembers it for the next stage that is like this one.
    `began`: the clock's time if it has run for a while without being shown.
    Prints nothing for a stage that is stopped: the program that stopped it, or was asked to, says that.
    """
    console = console or Console(highlight=False)
    began, is_drawn = clock() if began is None else began, has_terminal(console)
    past = (past or PastSeconds()) if like is not None else None
    usual_seconds = past.expected(like) if past is not None and like is not None else None
    it = Stage(name, total, clock=clock, usual_seconds=usual_seconds)
    try:
        with _terminal(it, console) if is_drawn else _plain(it, console):
            yield it
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise
    except BaseException:
        words = f"[red]failed[/]  {name} after {duration(clock() - began)}"
        console.print(words, highlight=False, soft_wrap=not is_drawn)
        raise
    if it.is_stopped:
        return
    if past is not None and like is not None:
        past.note(like, clock() - began)
    words = f"[green]done[/]    {name} in {duration(clock() - began)}"
    console.print(words, highlight=False, soft_wrap=not is_drawn)


class _Words(ProgressColumn):
    """Words about the stage, as they are whenever the bar is drawn."""

    def __init__(self, words: Callable[[Stage], str]) -> None:
        super().__init__()
        self._words = words

    def render(self, task: Task) -> Text:
        return Text(self._words(task.fields["stage"]), style="progress.remaining")


@contextmanager
def _terminal(it: Stage, console: Console) -> Iterator[None]:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        _Words(Stage.share),
        TimeElapsedColumn(),
        _Words(Stage.left),
    )
    # What is redirected is written above the bar; what goes into a file is not.
    with Progress(
        *columns,
        console=console,
        transient=True,
        redirect_stdout=sys.stdout.isatty(),
        redirect_stderr=sys.stderr.isatty(),
    ) as progress:
        task = progress.add_task(it.name, total=it.total, stage=it)
        it.on_change = lambda: progress.update(task, description=it.name, completed=it.done, total=it.total)
        yield


@contextmanager
def _plain(it: Stage, console: Console) -> Iterator[None]:
    usual = "" if it.usual_seconds is None else f", usually {duration(it.usual_seconds)}"
    console.print(f"start   {it.name}{usual}", highlight=False, soft_wrap=True)
    last = began = it.clock()

    def on_change() -> None:
        nonlocal last
        interval = max(PLAIN_INTERVAL_SECONDS, PLAIN_INTERVAL_SHARE * (last - began))
        if it.clock() - last >= interval and it.total:
            last = it.clock()
            words = ", ".join(part for part in (f"{it.name} {it.share()}", it.left()) if part)
            console.print(f"        {words}", highlight=False, soft_wrap=True)

    it.on_change = on_change
    yield


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
