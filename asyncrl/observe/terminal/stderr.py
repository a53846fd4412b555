"""Warnings for a person, on standard error: what every command shows unless it shows them its own way."""

import logging

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
