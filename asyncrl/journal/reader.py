"""The journal of a run for people, read only and while the controller writes it: groups and trajectories.

Each call reads one consistent state. Steps count from 1 here, as in metrics.jsonl: step n made version n.
"""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from asyncrl.errors import InputError
from asyncrl.journal.connection import Parameters, is_begun, open_for_reading
from asyncrl.journal.packing import (
    NUMBER_BYTES,
    split_credits,
    split_runs,
    unpack_halves,
    unpack_logprobs,
    unpack_pairs,
    unpack_scores,
    unpack_tokens,
)
from asyncrl.journal.rows import (
    BranchVerdictRow,
    CommitRow,
    FaultTrace,
    GroupRow,
    GroupSummary,
    RetriedFault,
    StreamRow,
    TrainedRow,
    TrajectoryRow,
    read_observations,
)
from asyncrl.system.paths import nearest_run

_GROUPS = """
WITH chosen AS (SELECT * FROM groups WHERE {where} ORDER BY group_id DESC LIMIT :limit),
     members AS (SELECT trajectory_id FROM trajectories WHERE group_id IN (SELECT group_id FROM chosen)),
     lengths AS (
         SELECT trajectory_id, SUM(LENGTH(tokens)) / {bytes} AS tokens,
                MIN(version) AS low, MAX(version) AS high
         FROM segments WHERE trajectory_id IN members GROUP BY trajectory_id
         UNION ALL
         SELECT trajectory_id, num_tokens, version_min, version_max FROM compacted
         WHERE trajectory_id IN members),
     answers_to_turns AS (
         SELECT trajectory_id, SUM(LENGTH(tokens)) / {bytes} AS tokens
         FROM observations WHERE trajectory_id IN members GROUP BY trajectory_id)
SELECT g.group_id, g.task_id, g.prompt, g.state, g.admitted_version, g.admitted_seconds,
       g.taken_version + 1 AS step, g.reason, COUNT(*) FILTER (WHERE t.branch_of IS NULL) AS num_trajectories,
       AVG(t.reward) FILTER (WHERE t.branch_of IS NULL) AS reward,
       SUM(t.outcome = 'correct') AS num_correct, SUM(t.outcome = 'wrong') AS num_wrong,
       SUM(t.outcome = 'no_answer') AS num_no_answer, SUM(t.outcome = 'fault') AS num_fault,
       SUM(l.tokens) AS tokens, SUM(o.tokens) AS observed_tokens,
       MIN(l.low) AS version_min, MAX(l.high) AS version_max
FROM chosen AS g LEFT JOIN trajectories AS t USING (group_id) LEFT JOIN lengths AS l USING (trajectory_id)
LEFT JOIN answers_to_turns AS o USING (trajectory_id)
GROUP BY g.group_id ORDER BY g.group_id DESC
"""
_GROUP = """
SELECT group_id, task_id, prompt, state, admitted_version, admitted_seconds, taken_version + 1 AS step, reason
FROM groups WHERE group_id = ?
"""
_CONDITIONS = {
    "state": "state = :state",
    "reason": "reason = :reason",
    "step": "(taken_version = :step - 1 "
    "OR group_id IN (SELECT group_id FROM repetitions WHERE taken_version = :step - 1))",
    "repeated": "group_id IN (SELECT group_id FROM repetitions WHERE taken_version = :repeated - 1)",
    "admitted": "admitted_version = :admitted",
    "task": "group_id IN (SELECT group_id FROM answers WHERE task_id = :task)",
    "before": "group_id < :before",
    "outcome": "EXISTS (SELECT 1 FROM trajectories AS t "
    "WHERE t.group_id = groups.group_id AND t.outcome = :outcome)",
}
"""Field of GroupFilter -> what it asks of a group."""

_FATES = """
WITH others AS (
         SELECT state, COUNT(*) AS num FROM groups WHERE state IN ('open', 'ready', 'taken', 'dropped')
         GROUP BY state)
SELECT fate, SUM(num) FROM (
    SELECT 'trained' AS fate, COUNT(*) - (SELECT coalesce(SUM(num), 0) FROM others) AS num FROM groups
    UNION ALL
    SELECT CASE state WHEN 'taken' THEN state ELSE 'queued' END, num FROM others WHERE state != 'dropped'
    UNION ALL
    SELECT 'dropped: ' || reason, COUNT(*) FROM groups WHERE reason IS NOT NULL GROUP BY reason)
WHERE num > 0 GROUP BY fate ORDER BY fate LIKE 'dropped%', fate DESC
"""
"""Counted in two indices, without a look at the groups. Most were trained: all rows less the others, since
SQLite counts all rows of a table ten times as fast as those of one state."""
_FAULTS = """
SELECT task_id, coalesce(detail, ''), count(*) FROM trajectories JOIN groups USING (group_id)
WHERE outcome = 'fault' GROUP BY detail ORDER BY min(trajectory_id)
"""


@dataclass(frozen=True, slots=True)
class GroupFilter:
    """Which groups to list; None lets all through."""

    state: str | None = None
    step: int | None = None
    """Groups that this step trained, for the first time or again."""
    reason: str | None = None
    """Why they were dropped."""
    repeated: int | None = None
    """Groups that this step trained again."""
    admitted: int | None = None
    """Groups that were admitted at this version of the trainer."""
    task: str | None = None
    """Graded groups of this task."""
    outcome: str | None = None
    """Groups with at least one trajectory of this outcome."""
    before: int | None = None
    """Groups with a smaller id: the next page."""
    limit: int = 100


class JournalReader:
    """Reads RUN/journal.sqlite. Raises InputError when there is none, or one of another schema version."""

    def __init__(self, path: Path) -> None:
        if not is_begun(path):
            raise InputError(
                f"There is no journal of a run at {path}. Name the folder of a run, such as runs/NAME."
                f"{nearest_run(path.parent)}"
            )
        self.path = path

    def read(self, sql: str, parameters: Parameters = ()) -> list[tuple[Any, ...]]:
        """Rows of a query on everything that is committed. Raises InputError when the file is damaged."""
        with self.reading() as db:
            return db.execute(sql, parameters).fetchall()

    def reading(self) -> AbstractContextManager[sqlite3.Connection]:
        """A connection for several queries, on one consistent state; never locks the writer out."""
        return open_for_reading(self.path)

    def groups(self, wanted: GroupFilter) -> list[GroupSummary]:
        """Newest first, each with its trajectories' rewards, outcomes, lengths and versions summed up."""
        values = {name: getattr(wanted, name) for name in _CONDITIONS if getattr(wanted, name) is not None}
        where = " AND ".join(["1", *(_CONDITIONS[name] for name in values)])
        query = _GROUPS.format(where=where, bytes=NUMBER_BYTES)
        with self._rows() as db:
            rows = db.execute(query, {**values, "limit": wanted.limit})
            return [cast(GroupSummary, dict(row)) for row in rows]

    def group(self, group_id: int) -> GroupRow | None:
        """One group with its trajectories, their segments and observations, tokens and log-probs as lists."""
        with self._rows() as db:
            found = db.execute(_GROUP, (group_id,)).fetchone()
            if found is None:
                return None
            members = (
                "SELECT * FROM trajectories WHERE group_id = ? "
                "ORDER BY sample, length(trajectory_id), trajectory_id"
            )
            trajectories = [_trajectory(db, row) for row in db.execute(members, (group_id,)).fetchall()]
            _divide(trajectories)
            query = "SELECT taken_version + 1 FROM repetitions WHERE group_id = ? ORDER BY 1"
            repeated = [again for (again,) in db.execute(query, (group_id,))]
        row = {**dict(found), "repeated_steps": repeated, "trajectories": trajectories}
        return cast(GroupRow, row)

    def group_of(self, trajectory_id: str) -> int | None:
        """The group of a trajectory, None when there is no such trajectory."""
        query = "SELECT group_id FROM trajectories WHERE trajectory_id = ?"
        return next((int(group_id) for (group_id,) in self.read(query, (trajectory_id,))), None)

    def streams(self, trajectory_id: str) -> list[StreamRow]:
        """Which servers generated a trajectory, from which token and when, in order."""
        query = "SELECT position, server, started_seconds FROM streams WHERE trajectory_id = ? ORDER BY rowid"
        return [
            StreamRow(position=position, server=server, started_seconds=seconds)
            for position, server, seconds in self.read(query, (trajectory_id,))
        ]

    def commit_of_step(self, step: int) -> CommitRow | None:
        """The first checkpoint that holds `step`, None before there is one."""
        query = (
            "SELECT version, checkpoint_folder, committed_seconds FROM commits WHERE version >= ? "
            "ORDER BY version LIMIT 1"
        )
        for version, folder, seconds in self.read(query, (step,)):
            return CommitRow(version=version, checkpoint_folder=folder, committed_seconds=seconds)
        return None

    def step_range(self) -> tuple[int, int] | None:
        """The first and the last step whose batch was taken."""
        ((first, last),) = self.read(
            "SELECT (SELECT MIN(taken_version) FROM groups) + 1, (SELECT MAX(taken_version) FROM groups) + 1"
        )
        return None if first is None else (first, last)

    def fates(self) -> dict[str, int]:
        """Groups by fate: trained, taken, queued, "dropped: <reason>"."""
        return dict(self.read(_FATES))

    def faults(self) -> list[tuple[str, str, int]]:
        """(task id, detail, number of verdicts) of the verdicts that failed, the first ones first."""
        return [(task_id, detail, count) for task_id, detail, count in self.read(_FAULTS)]

    def fault_traces(self) -> dict[str, FaultTrace]:
        """Cause (`plugins.cause_of`) -> its first traceback, of verifiers that raised."""
        query = "SELECT cause, trajectory_id, trace FROM fault_traces"
        return {cause: FaultTrace(trajectory_id=name, trace=trace) for cause, name, trace in self.read(query)}

    def retried_faults(self) -> list[RetriedFault]:
        """Faults whose retry gave a verdict, by cause, the most frequent first."""
        query = "SELECT cause, num_faults, task_id, detail, trace FROM retried_faults ORDER BY 2 DESC, 1"
        return [
            RetriedFault(cause=cause, num_faults=count, task_id=task_id, detail=detail, trace=trace)
            for cause, count, task_id, detail, trace in self.read(query)
        ]

    @contextmanager
    def _rows(self) -> Iterator[sqlite3.Connection]:
        """A snapshot whose rows know their columns' names."""
        with open_for_reading(self.path) as db:
            db.row_factory = sqlite3.Row
            yield db


def find_journal(path: Path) -> JournalReader | None:
    """The journal at `path`; None where no run has begun to write one. Raises InputError as JournalReader."""
    return JournalReader(path) if is_begun(path) else None


def _trajectory(db: sqlite3.Connection, row: sqlite3.Row) -> TrajectoryRow:
    segments = db.execute(
        "SELECT position, version, is_continued, tokens, logprobs FROM segments"
        " WHERE trajectory_id = ? ORDER BY position",
        (row["trajectory_id"],),
    )
    compacted = db.execute(
        "SELECT segments FROM compacted WHERE trajectory_id = ?", (row["trajectory_id"],)
    ).fetchone()
    found = {
        **dict(row),
        "compacted": None if compacted is None else json.loads(compacted["segments"]),
        "scores": unpack_scores(row["scores"]),
        "credits": unpack_pairs(row["credits"]),
        "turn_advantages": unpack_pairs(row["turn_advantages"]),
        "branch_verdict": _branch_verdict(db, row["trajectory_id"]),
        "trained": _trained(db, row["trajectory_id"]),
        "teacher_logprobs": _teacher_logprobs(db, row["trajectory_id"]),
        "prompt_tokens": unpack_tokens(row["prompt_tokens"]),
        "segments": [
            {
                "position": segment["position"],
                "version": segment["version"],
                "is_continued": bool(segment["is_continued"]),
                "tokens": unpack_tokens(segment["tokens"]),
                "logprobs": unpack_logprobs(segment["logprobs"]),
            }
            for segment in segments
        ],
        "observations": read_observations(db, row["trajectory_id"]),
    }
    return cast(TrajectoryRow, found)


def _branch_verdict(db: sqlite3.Connection, trajectory_id: str) -> BranchVerdictRow | None:
    row = db.execute(
        "SELECT outcome, correctness, reward, extracted, detail, verify_seconds, text FROM branch_verdicts "
        "WHERE trajectory_id = ?",
        (trajectory_id,),
    ).fetchone()
    return None if row is None else cast(BranchVerdictRow, dict(row))


def _divide(trajectories: list[TrajectoryRow]) -> None:
    """Gives each branch its own of the rewards and advantages that its trajectory's row has of all."""
    lines: dict[str, list[TrajectoryRow]] = {}
    for each in trajectories:
        lines.setdefault(each["branch_of"] or each["trajectory_id"], []).append(each)
    for whole, *branches in lines.values():
        if not branches:
            continue
        lengths = [_num_sampled(each) for each in (whole, *branches)]
        credits = split_credits(whole["credits"], lengths)
        runs = split_runs(whole["turn_advantages"], lengths)
        for each, own_credits, own_runs in zip((whole, *branches), credits, runs, strict=True):
            each["credits"], each["turn_advantages"] = own_credits, own_runs


def _num_sampled(trajectory: TrajectoryRow) -> int:
    if trajectory["compacted"] is not None:
        return sum(count for _, count, _ in trajectory["compacted"])
    return sum(len(segment["tokens"]) for segment in trajectory["segments"])


def _teacher_logprobs(db: sqlite3.Connection, trajectory_id: str) -> list[float]:
    query = "SELECT logprobs FROM teacher_logprobs WHERE trajectory_id = ?"
    row = db.execute(query, (trajectory_id,)).fetchone()
    return [] if row is None else unpack_logprobs(row["logprobs"])


def _trained(db: sqlite3.Connection, trajectory_id: str) -> TrainedRow | None:
    """The record of its tokens by the last step that kept one."""
    row = db.execute(
        "SELECT taken_version + 1 AS step, log_ratios, entropies, advantages FROM trained_tokens "
        "WHERE trajectory_id = ? ORDER BY taken_version DESC LIMIT 1",
        (trajectory_id,),
    ).fetchone()
    if row is None:
        return None
    return TrainedRow(
        step=row["step"],
        log_ratios=unpack_halves(row["log_ratios"]),
        entropies=unpack_halves(row["entropies"]),
        advantages=None if row["advantages"] is None else unpack_halves(row["advantages"]),
    )
