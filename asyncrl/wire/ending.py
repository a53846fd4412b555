"""How a trainer rank tells its launcher why it ends: a line of JSON in its log, below the one for people.

The log is the one thing of a rank that reaches the launcher from every node. Its disk may have no room for
the line: then the exit code alone says what kind of end it was.
"""

import json

import msgspec

from asyncrl.errors import AsyncrlError

_BEGINNING = '{"asyncrl":"ending"'


class Ending(msgspec.Struct, frozen=True, tag_field="asyncrl", tag="ending"):
    """The error that a rank ended with."""

    error: str
    """Name of its type."""
    message: str


def ending_line(error: AsyncrlError) -> str:
    """The line for the log, with its line break. In ASCII: Unicode has further line breaks."""
    ending = msgspec.to_builtins(Ending(type(error).__name__, str(error)))
    return json.dumps(ending, separators=(",", ":")) + "\n"


def find_ending(log: str) -> Ending | None:
    """The last ending in these lines of a log; None without a whole one."""
    for line in reversed(log.splitlines()):
        # Libraries leave lines without an end.
        begin = line.find(_BEGINNING)
        if begin < 0:
            continue
        try:
            return msgspec.json.decode(line[begin:], type=Ending)
        except msgspec.DecodeError:
            continue
    return None
