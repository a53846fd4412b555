"""The journal of a run, read only and while the controller writes it: groups, trajectories, segments.

Each call reads one consistent state. Never locks the writer out (SQLite WAL), never writes. Steps are counted
from 1 here, as in metrics.jsonl: step n made version n (in the file itself `groups.step` counts from 0).
"""

import json
import sqlite3
from array import array
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl.errors import InputError
from asyncrl.observe.faults import FaultCause, group_faults

Row = dict[str, Any]
TOKEN_BYTES = 4
"""Tokens and log-probs are little-endian 4-byte numbers."""

_GROUPS = """
WITH chosen AS (SELECT * FROM groups WHERE {where} ORDER BY group_id DESC LIMIT :limit),
     members AS (SELECT trajectory_id FROM trajectories WHERE group_id IN (SELECT group_id FROM chosen)),
     lengths AS (
         SELECT trajectory_id, SUM(LENGTH(tokens)) / {bytes} AS tokens,
                MIN(version) AS low, MAX(version) AS high
         FROM segments WHERE trajectory_id IN members GROUP BY trajectory_id
         UNION ALL
         SELECT trajectory_id, num_tokens, version_min, version_max FROM compacted
         WHERE trajectory_id IN members)
SELECT g.group_id, g.task_id, g.prompt, g.state, g.admitted_version, g.admitted_seconds,
       g.step + 1 AS step, g.reason, COUNT(*) AS num_trajectories, AVG(t.reward) AS reward,
       SUM(t.outcome = 'correct') AS num_correct, SUM(t.outcome = 'wrong') AS num_wrong,
       SUM(t.outcome = 'no_answer') AS num_no_answer, SUM(t.outcome = 'fault') AS num_fault,
       SUM(l.tokens) AS tokens, MIN(l.low) AS version_min, MAX(l.high) AS version_max
FROM chosen AS g LEFT JOIN trajectories AS t USING (group_id) LEFT JOIN lengths AS l USING (trajectory_id)
GROUP BY g.group_id ORDER BY g.group_id DESC
"""

_LATER_TABLES = {
    "compacted": "trajectory_id, num_tokens, version_min, version_max, runs",
    "streams": "trajectory_id, position, server, started_seconds",
    "repetitions": "step, group_id",
}
"""What a journal of an earlier version of this project may lack, with its columns."""

_FATES = """
SELECT CASE WHEN state = 'dropped' THEN 'dropped: ' || reason
            WHEN state IN ('open', 'ready') THEN 'queued' ELSE state END AS fate, COUNT(*)
FROM groups GROUP BY fate ORDER BY fate LIKE 'dropped%', fate DESC
"""


@dataclass(frozen=True, slots=True)
class GroupFilter:
    """Which groups to list; None lets all through."""

    state: str | None = None
    step: int | None = None
    """Groups that this step took, for the first time or again."""
    outcome: str | None = None
    """Groups with at least one trajectory of this outcome."""
    before: int | None = None
    """Groups with a smaller id: the next page."""
    limit: int = 100


class Journal:
    """Reads RUN/journal.sqlite. Raises InputError when there is none."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise InputError(f"There is no journal at {path}. Name the folder of a run, such as runs/NAME.")
        self._path = path

    def groups(self, wanted: GroupFilter) -> list[Row]:
        """Newest first, each with its trajectories' rewards, outcomes, lengths and versions summed up."""
        conditions, values = ["1"], {"limit": wanted.limit}
        for column, condition in (
            ("state", "state = :state"),
            (
                "step",
                "(step = :step - 1 OR group_id IN (SELECT group_id FROM repetitions WHERE step = :step - 1))",
            ),
            ("before", "group_id < :before"),
            ("outcome", "group_id IN (SELECT group_id FROM trajectories WHERE outcome = :outcome)"),
        ):
            if getattr(wanted, column) is not None:
                conditions.append(condition)
                values[column] = getattr(wanted, column)
        query = _GROUPS.format(where=" AND ".join(conditions), bytes=TOKEN_BYTES)
        with self._read() as db:
            return [dict(row) for row in db.execute(query, values)]

    def group(self, group_id: int) -> Row | None:
        """One group with its trajectories and their segments, tokens and log-probs as lists."""
        with self._read() as db:
            found = db.execute("SELECT * FROM groups WHERE group_id = ?", (group_id,)).fetchone()
            if found is None:
                return None
            trajectories = [
                _trajectory(db, row)
                for row in db.execute(
                    "SELECT * FROM trajectories WHERE group_id = ? ORDER BY sample", (group_id,)
                )
            ]
            query = "SELECT step + 1 FROM repetitions WHERE group_id = ? ORDER BY step"
            repeated = [again for (again,) in db.execute(query, (group_id,))]
        step = None if found["step"] is None else found["step"] + 1
        return {**dict(found), "step": step, "repeated_steps": repeated, "trajectories": trajectories}

    def group_of(self, trajectory_id: str) -> int | None:
        """The group of a trajectory, None when there is no such trajectory."""
        with self._read() as db:
            found = db.execute(
                "SELECT group_id FROM trajectories WHERE trajectory_id = ?", (trajectory_id,)
            ).fetchone()
        return None if found is None else int(found["group_id"])

    def streams(self, trajectory_id: str) -> list[Row]:
        """Which servers went on with a trajectory, from which token and when, in order."""
        query = "SELECT position, server, started_seconds FROM streams WHERE trajectory_id = ? ORDER BY rowid"
        with self._read() as db:
            return [dict(row) for row in db.execute(query, (trajectory_id,))]

    def commit_of_step(self, step: int) -> Row | None:
        """The first checkpoint that holds `step`, None before there is one."""
        query = "SELECT * FROM commits WHERE version >= ? ORDER BY version LIMIT 1"
        with self._read() as db:
            found = db.execute(query, (step,)).fetchone()
        return None if found is None else dict(found)

    def step_range(self) -> tuple[int, int] | None:
        """The first and the last step that took a group."""
        with self._read() as db:
            first, last = db.execute("SELECT MIN(step), MAX(step) FROM groups").fetchone()
        return None if first is None else (first + 1, last + 1)

    def fates(self) -> dict[str, int]:
        """Groups by fate: trained, taken, queued, "dropped: <reason>"."""
        with self._read() as db:
            return dict(db.execute(_FATES).fetchall())

    def faults(self) -> list[FaultCause]:
        """The verdicts that failed, by cause."""
        query = (
            "SELECT task_id, coalesce(detail, ''), count(*) FROM trajectories JOIN groups USING (group_id) "
            "WHERE outcome = 'fault' GROUP BY detail ORDER BY min(trajectory_id)"
        )
        with self._read() as db:
            return group_faults(db.execute(query).fetchall())

    @contextmanager
    def _read(self) -> Iterator[sqlite3.Connection]:
        uri = f"{self._path.resolve().as_uri()}?mode=ro"
        try:
            with closing(sqlite3.connect(uri, uri=True, timeout=10.0)) as db:
                db.row_factory = sqlite3.Row
                # One transaction per call: the writer goes on, this reader sees one state.
                db.execute("BEGIN")
                there = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
                for name, columns in _LATER_TABLES.items():
                    if name not in there:
                        # Empty, and this connection's own.
                        db.execute(f"CREATE TEMP TABLE {name} ({columns})")
                yield db
        except sqlite3.DatabaseError as error:
            raise InputError(f"{self._path} cannot be read as the journal of a run: {error}.") from error


def _trajectory(db: sqlite3.Connection, row: sqlite3.Row) -> Row:
    segments = db.execute(
        "SELECT position, version, is_continued, tokens, logprobs FROM segments"
        " WHERE trajectory_id = ? ORDER BY position",
        (row["trajectory_id"],),
    )
    compacted = db.execute("SELECT runs FROM compacted WHERE trajectory_id = ?", (row["trajectory_id"],))
    runs = compacted.fetchone()
    return {
        **dict(row),
        # [version, tokens, is_continued] of each former segment, None while the tokens themselves are there.
        "runs": None if runs is None else json.loads(runs["runs"]),
        "prompt_tokens": numbers("i", row["prompt_tokens"]),
        "segments": [
            {
                "position": segment["position"],
                "version": segment["version"],
                "is_continued": bool(segment["is_continued"]),
                "tokens": numbers("i", segment["tokens"]),
                "logprobs": numbers("f", segment["logprobs"]),
            }
            for segment in segments
        ],
    }


def numbers(kind: str, blob: bytes) -> list[Any]:
    """A little-endian int32 ("i") or float32 ("f") blob as a list."""
    values = array(kind)
    values.frombytes(blob)
    return values.tolist()
