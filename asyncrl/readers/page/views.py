"""The views of a run beside its groups: curves, evaluations, answers, ledger, faults, servers, log.

`read_NAME` reads what a view shows, and `ask_NAME` answers its request where that has a query. `hold_NAME` is
what an exported document holds of such a view: path -> answer, and path/held -> words for the part that it
holds where that is not all.
"""

import functools
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from aiohttp import web

from asyncrl.journal.connection import REPEATED, read_counters
from asyncrl.journal.conservation import Conservation, read_conservation, read_ledger
from asyncrl.journal.responses import ChangedTask, read_changed_tasks
from asyncrl.observe.metrics.charts import evaluated_columns
from asyncrl.observe.metrics.mishaps import group_faults, warnings_of
from asyncrl.readers.page.runs import Run, answer, run_of, whole
from asyncrl.readers.report.answers import read_measured
from asyncrl.readers.status import cause_of, stamp, state_of
from asyncrl.run.metrics_file import RESUMED, Row
from asyncrl.run.status import is_running, read_status
from asyncrl.system.places import ANSWERS


async def ask_curves(request: web.Request) -> web.Response:
    """A page that follows a run asks with the cursor of its last answer and gets only the steps since then.
    The cursor is a place in the file; the page drops what a resumed run superseded, as `MetricsFollower`
    does."""
    columns = [name for name in request.query.get("columns", "").split(",") if name]
    return await answer(read_curves, run_of(request), columns, request.query.get("after", ""))


def hold_curves(run: Run, num_groups: int) -> dict[str, Any]:
    """All columns."""
    names = read_curves(run, [], "")["names"]
    return {f"/api/runs/{run.name}/curves": read_curves(run, names, "")}


def read_curves(run: Run, columns: Sequence[str], cursor: str) -> dict[str, Any]:
    """The part of the curves that a page at `cursor` lacks ("": all). Raises InputError for a broken file."""
    generation, _, offset = cursor.partition("-")
    after = int(offset) if offset.isdecimal() and len(offset) < 18 else 0
    added = run.metrics.read_after(after)
    is_whole = not after or generation != str(added.generation)
    if is_whole and after:
        added = run.metrics.read_after(0)
    return {
        # For the next request.
        "cursor": f"{added.generation}-{added.offset}",
        # Whether the page has to forget what it has.
        "is_whole": is_whole,
        # The last of the page's steps that still holds; None: all of them.
        "keep_to": added.keep_to,
        "steps": [int(row["step"]) for row in added.steps],
        "columns": {name: [_number(row.get(name)) for row in added.steps] for name in columns},
        "seconds": [row["time_seconds"] for row in added.steps],
        # All numeric columns among these rows.
        "names": _numeric(added.steps),
        # All of the run, in order of steps, as are those of benchmarks and named sets.
        "evaluations": [
            {
                "step": row["step"],
                "seconds": row["time_seconds"],
                **{name: row.get(name) for name in evaluated_columns()},
            }
            for row in sorted(added.evaluations, key=lambda row: row["step"])
        ],
        "sets": [_of_set(row) for row in sorted(added.benchmarks, key=lambda row: row["step"])],
    }


def _of_set(row: Row) -> dict[str, Any]:
    is_greedy = row.get("greedy_accuracy") is not None
    kind, accuracy = ("greedy", "greedy_accuracy") if is_greedy else ("avg", "avg_at_k")
    shown = {"accuracy": row.get(accuracy), "low": row.get(f"{kind}_low"), "high": row.get(f"{kind}_high")}
    return {"name": row["benchmark"], "step": row["step"], "seconds": row["time_seconds"], **shown}


def _numeric(rows: Sequence[Row]) -> list[str]:
    found: set[str] = set()
    for row in rows:
        # Most rows add no name.
        if not found.issuperset(row):
            found.update(name for name, value in row.items() if type(value) in (int, float))
    return sorted(found - {"step", "time_seconds"})


def _number(value: Any) -> float | None:
    return value if type(value) in (int, float) else None


MOST_KEPT = 50
"""Runs whose curves over k stay computed: those of many tasks take a second."""


def read_evaluations(run: Run) -> list[dict[str, Any]]:
    """The results of `asyncrl eval`: for each evaluation set its title, a table of words, and the curves of
    `compared` (null without)."""
    stamps = tuple(stamp(run.folder / name) for name in (ANSWERS, f"{ANSWERS}-wal"))
    return _read_evaluations(run.folder, stamps)


@functools.lru_cache(maxsize=MOST_KEPT)
def _read_evaluations(folder: Path, stamps: tuple[str, ...]) -> list[dict[str, Any]]:
    """`stamps` change with the file."""
    return [
        {**asdict(each.table()), "name": each.name, "seconds": each.seconds, "compared": each.compared}
        for each in read_measured(folder)
    ]


PAGE_SIZE = 25
"""Tasks of one answer."""


def read_changes(run: Run, offset: int) -> list[ChangedTask]:
    """Tasks whose answers changed over the versions of the policy, the most changeable first."""
    return read_changed_tasks(run.journal, offset=offset, limit=PAGE_SIZE)


async def ask_answers(request: web.Request) -> web.Response:
    return await answer(read_changes, run_of(request), max(0, whole(request, "offset") or 0))


def hold_answers(run: Run, num_groups: int) -> dict[str, Any]:
    """The changed tasks, at most `num_groups` of them."""
    path = f"/api/runs/{run.name}/answers"
    tasks = read_changed_tasks(run.journal, limit=num_groups + 1)
    held = {f"{path}/held": f"the {num_groups:,} most changeable tasks (--groups)"}
    return {path: tasks[:num_groups], **(held if len(tasks) > num_groups else {})}


MOST_STEPS_HELD = 1000


def read_books(run: Run) -> dict[str, Any]:
    """The conservation table. `missing_tokens` is 0 when every generated token is accounted for;
    `repeated_tokens` were trained again, counted each time."""
    books = Conservation(read_conservation(run.journal.path), run.journal.fates())
    return {
        "generated_tokens": books.generated_tokens(),
        "generated_groups": books.generated_groups(),
        "missing_tokens": books.missing_tokens(),
        "repeated_tokens": read_counters(run.journal).get(REPEATED, 0),
        "fates": [asdict(fate) for fate in books.fates()],
    }


async def ask_ledger(request: web.Request) -> web.Response:
    """The fates of the groups, step by step."""
    before = whole(request, "before")
    return await answer(lambda journal: read_ledger(journal, before=before), run_of(request).journal)


def hold_ledger(run: Run, num_groups: int) -> dict[str, Any]:
    """The last steps."""
    path = f"/api/runs/{run.name}/ledger"
    rows = read_ledger(run.journal, limit=MOST_STEPS_HELD)
    held = {f"{path}/held": f"the last {MOST_STEPS_HELD:,} steps"}
    return {path: rows, **(held if rows and rows[-1]["step"] > 1 else {})}


def read_causes(run: Run) -> list[dict[str, Any]]:
    """The fields of each FaultCause, the most frequent first, with two more. `trace`: the first traceback,
    None where the verifier did not raise; `trajectory_id`: whose verdict it was, None where a retry gave one.
    """
    traces, retried = run.journal.fault_traces(), run.journal.retried_faults()
    retried_traces = {row["cause"]: row["trace"] or None for row in retried}
    causes = []
    for fault in group_faults(run.journal.faults(), retried):
        first = traces.get(fault.cause)
        trace = retried_traces.get(fault.cause) if first is None else first["trace"]
        of = None if first is None else first["trajectory_id"]
        causes.append({**asdict(fault), "trace": trace, "trajectory_id": of})
    return causes


def read_servers(run: Run) -> dict[str, Any]:
    """The servers, and what each part waits for, as RUN/status.json has it; `found` is null where the run
    wrote none. `state` and `cause` are those of `CurrentRun`. Raises InputError for a file that is no
    status."""
    status = read_status(run.folder)
    if status is None:
        return {"found": None}
    now, state = time.time(), state_of(run.folder, status)
    found = {
        "state": state,
        "cause": cause_of(run.folder) if state == "failed" else None,
        "is_running": is_running(status, now_seconds=now),
        "age_seconds": max(0.0, now - status["time_seconds"]),
        "status": status,
    }
    return {"found": found}


def read_log(run: Run) -> dict[str, Any]:
    """Warnings, each once with its count, alarms and starts as their events in metrics.jsonl; the latest
    first."""
    events = run.metrics.read().events
    return {
        "warnings": warnings_of(events),
        "alarms": [row for row in reversed(events) if row["event"] == "alarm"],
        "starts": [row for row in reversed(events) if row["event"] == RESUMED],
    }
