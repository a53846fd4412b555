"""Output of every command: numbers in few characters, tables as rows of words, warnings on standard error."""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from asyncrl.system.words import as_percent, fixed, signed

NOTHING = "-"
EIGHTHS = " ▏▎▍▌▋▊▉█"
LEVELS = "▁▂▃▄▅▆▇█"


def compact(value: float | None) -> str:
    """The number in at most five characters: 7.25, 31.2, 950, 4.2k, 12k, 3.4M."""
    if value is None:
        return NOTHING
    # Each bound is where rounding would carry into the next form: 999.6 is "1.0k", never "1000".
    for limit, scale, digits, unit in (
        (9.995, 1, 2, ""),
        (99.95, 1, 1, ""),
        (999.5, 1, 0, ""),
        (9_950, 1e3, 1, "k"),
        (999_500, 1e3, 0, "k"),
        (9_950_000, 1e6, 1, "M"),
        (999_500_000, 1e6, 0, "M"),
    ):
        if abs(value) < limit:
            return f"{fixed(value / scale, digits)}{unit}"
    return f"{fixed(value / 1e9, 1)}G"


def hundredths(value: float) -> str:
    """Two decimals; a whole number only where it is one: 0.99999 -> "0.99", 0.001 -> "0.01"."""
    rounded = float(fixed(value, 2))
    if rounded == round(rounded) and rounded != value:
        rounded += math.copysign(0.01, value - rounded)
    return f"{rounded:.2f}"


def percent(share: float | None) -> str:
    """0.912 -> "91%"."""
    return NOTHING if share is None else as_percent(share)


def percent_with_interval(share: float | None, low: float | None, high: float | None) -> str:
    """0.912, 0.874, 0.941 -> "91% 87-94"."""
    if share is None or low is None or high is None:
        return percent(share)
    return f"{percent(share)} {fixed(100 * low)}-{fixed(100 * high)}"


def exact_share(share: float | None, low: float | None, high: float | None) -> str:
    """0.75, 0.598, 0.858 -> "75.0% [59.8, 85.8]"."""
    if share is None or low is None or high is None:
        return NOTHING
    return f"{as_percent(share, 1)} [{fixed(100 * low, 1)}, {fixed(100 * high, 1)}]"


def in_points(mean: float, low: float, high: float) -> str:
    """A difference of shares with its interval: 0.5, -0.166, 0.832 -> "+50.0 [-16.6, +83.2]"."""
    return f"{signed(100 * mean, 1)} [{signed(100 * low, 1)}, {signed(100 * high, 1)}]"


def duration(seconds: float | None) -> str:
    """8.25 -> "8.2 s" below ten seconds, then "42 s", "1:35" and "2:05:00"."""
    if seconds is None:
        return NOTHING
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    hours, rest = divmod(whole, 3600)
    minutes, left = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"


def tiny_bar(share: float, *, width: int, is_unicode: bool) -> str:
    """`share` of `width` characters filled, in eighths of a character if the terminal has them."""
    share = min(1.0, max(0.0, share))
    if not is_unicode:
        full = round(share * width)
        return "#" * full + "." * (width - full)
    full, eighth = divmod(round(share * width * 8), 8)
    return ("█" * full + (EIGHTHS[eighth] if full < width else "")).ljust(width)


def sparkline(values: list[float], *, width: int) -> str:
    """The last `width` values, scaled between their minimum and maximum, oldest on the left."""
    shown = values[-width:]
    if not shown:
        return " " * width
    low, span = min(shown), max(shown) - min(shown)
    line = "".join(LEVELS[round((value - low) / span * 7) if span else 3] for value in shown)
    return line.ljust(width)


def has_terminal(console: Console) -> bool:
    """Whether lines may be drawn over. FORCE_COLOR alone makes no terminal of a pipe, and a terminal that
    calls itself dumb cannot redraw."""
    return console.file.isatty() and not console.is_dumb_terminal


def printable(text: str) -> str:
    """`text` with terminal control characters escaped, except line breaks and tabs: programs wrote it."""
    kept = (c if c in "\n\t" or c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return "".join(kept)


class _Printable(logging.Formatter):
    """Programs wrote parts of the messages: nothing in them steers the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def warn_on_stderr() -> None:
    """Shows warnings and errors of all loggers, one message each, without time or level."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Printable("%(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


WIDTH_WITHOUT_TERMINAL = 160
"""Columns where there is no terminal to fit: a file or a pipe."""


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


def print_table(table: Table, console: Console) -> None:
    """The first column stands left, the others right. Words wrap inside their columns where the terminal is
    narrow."""
    drawn = RichTable(box=None, padding=(0, 2, 0, 0))
    for index, title in enumerate(table.header):
        drawn.add_column(
            Text(printable(title)), justify="right" if index else "left", header_style="dim", overflow="fold"
        )
    for row in table.rows:
        drawn.add_row(*(Text(printable(cell)) for cell in row))
    if table.title:
        console.print(Text(printable(table.title), style="bold"), soft_wrap=True)
    console.print(drawn)
    if table.note:
        console.print(Text(printable(table.note), style="dim"))


def table_console() -> Console:
    """Standard output, wide enough for tables where it is no terminal."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, WIDTH_WITHOUT_TERMINAL)
    return console
