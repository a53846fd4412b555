"""Numbers as the journal stores them, columns that features have for tokens (`records.Columns`) in their
tables, and the sequences of a scored group.

Columns that servers send stand beside their segments, those that come once a trajectory is finished beside
its name. A column's name is the table's, or the table's column.
"""

import json
import sqlite3
import struct
import sys
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from asyncrl.journal.connection import Statement
from asyncrl.records import (
    CREDITS,
    Columns,
    Credits,
    Score,
    ScoredSequence,
    Segment,
    Trajectory,
    TurnAdvantages,
)

NUMBER_BYTES = 4
"""Size of a token and of a log-prob."""
HALF_BYTES = 2
_IS_LITTLE = sys.byteorder == "little"


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """int32, little-endian."""
    return _in_file_order(array("i", tokens)).tobytes()


def pack_logprobs(logprobs: Sequence[float]) -> bytes:
    """float32, little-endian."""
    return _in_file_order(array("f", logprobs)).tobytes()


def unpack_tokens(blob: bytes) -> list[int]:
    return _in_file_order(array("i", blob)).tolist()


def unpack_logprobs(blob: bytes) -> list[float]:
    return _in_file_order(array("f", blob)).tolist()


def pack_places(values: Sequence[tuple[int, float]], count: int) -> bytes:
    """(place, value) each -> `count` numbers as `pack_logprobs` packs them, 0 elsewhere."""
    found = [0.0] * count
    for place, value in values:
        found[place] = value
    return pack_logprobs(found)


def unpack_halves(blob: bytes) -> list[float]:
    """float16, little-endian; may hold NaN."""
    return list(struct.unpack(f"<{len(blob) // HALF_BYTES}e", blob))


def _in_file_order(values: "array[Any]") -> "array[Any]":
    if not _IS_LITTLE:
        values.byteswap()
    return values


def pack_scores(scores: Mapping[str, float]) -> str | None:
    """Name -> score, as JSON; None for none. Floats keep every bit."""
    return json.dumps(dict(scores)) if scores else None


def unpack_scores(text: str | None) -> dict[str, float]:
    return {} if text is None else {name: float(score) for name, score in json.loads(text).items()}


def pack_pairs(pairs: Sequence[tuple[int, float]]) -> str | None:
    """(whole number, float) each, as JSON; None for none. Floats keep every bit."""
    return json.dumps([list(pair) for pair in pairs]) if pairs else None


def unpack_pairs(text: str | None) -> list[tuple[int, float]]:
    return [] if text is None else [(number, float(value)) for number, value in json.loads(text)]


class ScoredGroup(Protocol):
    """Fields of `Group` that make sequences."""

    trajectories: list[Trajectory]
    scores: dict[str, Score]
    advantages: dict[str, float]
    turn_advantages: dict[str, TurnAdvantages]
    columns: dict[str, Columns]

    def source(self) -> str: ...


def sequences_of(group: ScoredGroup) -> list[ScoredSequence]:
    """The sequences of a ready group, as a trainer gets them: one per branch with sampled tokens."""
    found = []
    for trajectory in group.trajectories:
        name = trajectory.trajectory_id
        if (advantage := group.advantages.get(name)) is None:
            continue
        score, lines = group.scores[name], trajectory.lines()
        assert score.reward is not None
        rewards = score.branch_rewards()
        # Kept for all sampled tokens of a trajectory, branch after branch: each branch gets its own part.
        lengths = [line.num_sampled_tokens() for line in lines]
        credits = split_credits(score.credits, lengths)
        runs = split_runs(group.turn_advantages.get(name, []), lengths)
        for line, size, own_credits, own_runs in zip(lines, lengths, credits, runs, strict=True):
            # An agent may have asked for nothing.
            if size:
                own = own_runs[0][1] if own_runs else advantage
                earned = {CREDITS: pack_places(own_credits, size)} if own_credits else {}
                found.append(
                    ScoredSequence.of(
                        line,
                        reward=rewards.get(line.trajectory_id, score.reward),
                        advantage=own,
                        turn_advantages=own_runs if any(each != own for _, each in own_runs) else [],
                        finish=trajectory.finish,
                        outcome=score.outcome,
                        source=group.source(),
                        columns=group.columns.get(line.trajectory_id, {}) | earned,
                    )
                )
    return found


def split_credits(credits: Credits, lengths: Sequence[int]) -> list[Credits]:
    """The credits of each branch, at places within it; `lengths` are the branches' sampled tokens."""
    found: list[Credits] = []
    first = 0
    for length in lengths:
        found.append([(place - first, reward) for place, reward in credits if 0 <= place - first < length])
        first += length
    return found


def split_runs(runs: TurnAdvantages, lengths: Sequence[int]) -> list[TurnAdvantages]:
    """The runs of each branch. A turn, and so a run, lies in one branch; without runs, none."""
    found: list[TurnAdvantages] = []
    left = list(runs)
    for length in lengths:
        own: TurnAdvantages = []
        while left and sum(count for count, _ in own) < length:
            own.append(left.pop(0))
        found.append(own)
    return found


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


def columns_of_segments(db: sqlite3.Connection, group_id: int) -> dict[tuple[str, int], Told]:
    """(trajectory or branch, position) -> the columns of that segment of the group."""
    found: dict[tuple[str, int], Told] = {}
    for name, (context, values) in _OF_SEGMENTS.items():
        rows = db.execute(
            f"SELECT trajectory_id, position, {values}, {context or 'NULL'} FROM {name} "
            "JOIN trajectories USING (trajectory_id) WHERE group_id = ?",
            (group_id,),
        )
        for line, position, of_tokens, in_front in rows:
            columns, fronts = found.setdefault((line, position), ({}, {}))
            columns[name] = bytearray(of_tokens)
            fronts |= {name: in_front} if in_front else {}
    return found


def columns_of_lines(db: sqlite3.Connection, group_id: int) -> dict[str, Columns]:
    """Trajectory or branch of the group -> its columns."""
    rows = db.execute(
        "SELECT trajectory_id, logprobs, top FROM teacher_logprobs JOIN trajectories USING (trajectory_id) "
        "WHERE group_id = ?",
        (group_id,),
    )
    return {
        line: {name: value for name, value in zip(OF_LINES, values, strict=True) if value}
        for line, *values in rows
    }
