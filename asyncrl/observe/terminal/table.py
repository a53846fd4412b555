"""Output of every command: tables as rows of words, warnings on standard error."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from asyncrl.observe.terminal.live import printable


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
            Text(printable(title)),
            justify="right" if index else "left",
            header_style="dim",
            overflow="fold",
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
