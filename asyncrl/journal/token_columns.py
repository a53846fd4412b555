"""The columns that features have for tokens (`records.Columns`), in their tables.

Those that servers send stand beside their segments, those that come once a trajectory is finished beside its
name. A column's name is the table's, or the table's column.
"""

from collections.abc import Mapping
from typing import Any

from asyncrl.journal.connection import Readable
from asyncrl.journal.counters import Statement
from asyncrl.records import Columns, Segment

_OF_SEGMENTS = {"kept_sets": ("", "kept"), "routes": ("context", "experts")}
"""Name, and table -> SQL columns of positions in front of a segment, "" where there are none, and of its
tokens."""
OF_LINES = ("teacher_logprobs", "teacher_top")
"""Names of the columns that come after the tokens of a trajectory or a branch."""

Told = tuple[dict[str, bytearray], Columns]
"""`Segment.columns` and `Segment.context`."""


def of_segment(place: tuple[str, int], segment: Segment) -> list[Statement]:
    """Inserts the columns of a segment at (trajectory or branch, position)."""
    rows: list[Statement] = []
    for name, values in segment.columns.items():
        context, _ = _OF_SEGMENTS[name]
        parts = [segment.context.get(name, b"")] if context else []
        marks = ", ".join("?" * (3 + len(parts)))
        rows.append((f"INSERT INTO {name} VALUES ({marks})", (*place, *parts, bytes(values))))
    return rows


def of_lines(found: Mapping[str, Columns]) -> list[Statement]:
    """Inserts the columns of trajectories and branches, by their ids."""
    return [
        (
            "INSERT OR REPLACE INTO teacher_logprobs VALUES (?, ?, ?)",
            (name, *(columns.get(column) for column in OF_LINES)),
        )
        for name, columns in found.items()
    ]


def read_of_segments(journal: Readable, group_id: int) -> dict[tuple[str, int], Told]:
    """(trajectory or branch, position) -> the columns of that segment of the group."""
    found: dict[tuple[str, int], Told] = {}
    for name, (context, values) in _OF_SEGMENTS.items():
        rows: list[tuple[Any, ...]] = journal.read(
            f"SELECT trajectory_id, position, {values}, {context or 'NULL'} FROM {name} "
            "JOIN trajectories USING (trajectory_id) WHERE group_id = ?",
            (group_id,),
        )
        for line, position, of_tokens, in_front in rows:
            columns, fronts = found.setdefault((line, position), ({}, {}))
            columns[name] = bytearray(of_tokens)
            fronts |= {name: in_front} if in_front else {}
    return found


def read_of_lines(journal: Readable, group_id: int) -> dict[str, Columns]:
    """Trajectory or branch of the group -> its columns."""
    rows = journal.read(
        "SELECT trajectory_id, logprobs, top FROM teacher_logprobs JOIN trajectories USING (trajectory_id) "
        "WHERE group_id = ?",
        (group_id,),
    )
    return {
        line: {name: value for name, value in zip(OF_LINES, values, strict=True) if value}
        for line, *values in rows
    }
