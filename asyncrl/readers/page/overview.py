"""All runs of the page, a line each; the line of one run is the head of its views."""

import time
from collections.abc import Sequence
from typing import Any, TypedDict

from aiohttp import web

from asyncrl.errors import InputError
from asyncrl.readers.page.runs import RUNS, Run, answer, run_of
from asyncrl.readers.status.current_run import cause_of, state_of
from asyncrl.run.metrics_file import RESUMED, Metrics, Row
from asyncrl.run.status import read_status

MOST_POINTS = 60
"""Evaluations of a sparkline."""


class Line(TypedDict):
    """A run in the overview, and the head of every view of it."""

    name: str
    folder: str
    revision: str
    """Changes whenever the run has written anything or its state has changed."""
    state: str | None
    """State that the run reports, or "no longer running"; None where it wrote no status."""
    cause: str | None
    """Error that ended a run that failed."""
    step: int | None
    total_steps: int | None
    again: tuple[int, int] | None
    """First and last step of those that a resumed run trains again."""
    accuracies: list[list[float]]
    """[step, held-out accuracy] of its evaluations."""
    low: float | None
    """The last accuracy lies between `low` and `high`, at 95%."""
    high: float | None
    reward: float | None
    """Mean reward of the last step."""
    alarm: str | None
    """The last one, as a sentence."""
    alarm_step: int | None
    begun_seconds: float | None
    """Unix time of its first row."""
    written_seconds: float | None
    """Unix time of its last row."""
    problem: str | None
    """Why the run cannot be read."""


def add_routes(router: web.UrlDispatcher) -> None:
    router.add_get("/api/runs", _runs)
    router.add_get("/api/runs/{run}", _run)


def exported(run: Run, *, num_groups: int) -> dict[str, Any]:
    """The run's line; `num_groups` belongs to other parts."""
    return {f"/api/runs/{run.name}": read_head(run)}


def read_line(run: Run) -> Line:
    """The run's line; it says what cannot be read, so that the other runs are still shown."""
    revision = run.revision()
    try:
        metrics, problem = run.metrics.read(), None
        state, step, total_steps = _progress(run, metrics)
    except (InputError, OSError) as error:
        metrics, problem = Metrics(), str(error)
        state, step, total_steps = None, None, None
    evaluations = [row for row in metrics.evaluations if row.get("greedy_accuracy") is not None]
    last = evaluations[-1] if evaluations else {}
    alarms = [row for row in metrics.events if row["event"] == "alarm"]
    alarm = alarms[-1] if alarms else {}
    rows = [*metrics.steps[:1], *metrics.steps[-1:], *evaluations[:1], *evaluations[-1:]]
    times = [row["time_seconds"] for row in rows]
    return {
        "name": run.name,
        "folder": str(run.folder),
        # A run that has stopped writes nothing, but its state changes.
        "revision": f"{revision} {state}",
        "state": state,
        "cause": cause_of(run.folder) if state == "failed" else None,
        "step": step,
        "total_steps": total_steps,
        "again": _again(metrics),
        "accuracies": [[row["step"], row["greedy_accuracy"]] for row in _thinned(evaluations, MOST_POINTS)],
        "low": last.get("greedy_low"),
        "high": last.get("greedy_high"),
        "reward": metrics.steps[-1].get("reward_mean") if metrics.steps else None,
        "alarm": _words(alarm) if alarm else None,
        "alarm_step": alarm.get("step"),
        "begun_seconds": min(times, default=None),
        "written_seconds": max(times, default=None),
        "problem": problem,
    }


def read_head(run: Run) -> Line:
    """The run's line. Raises InputError where its files cannot be read."""
    line = read_line(run)
    if line["problem"] is not None:
        raise InputError(line["problem"])
    return line


def read_lines(runs: Sequence[Run], chains: Sequence[str] = ()) -> dict[str, Any]:
    """`chains` are the names of the page's chains."""
    return {"now_seconds": time.time(), "runs": [read_line(run) for run in runs], "chains": [*chains]}


def _progress(run: Run, metrics: Metrics) -> tuple[str | None, int | None, int | None]:
    """State, steps done, steps to do."""
    status = read_status(run.folder)
    done = metrics.steps[-1]["step"] if metrics.steps else None
    if status is None:
        total = run.recipe.get("trainer", {}).get("num_steps")
        return None, done, total
    return state_of(run.folder, status), max(status["step"], done or 0), status["total_steps"]


def _again(metrics: Metrics) -> tuple[int, int] | None:
    """First and last step of those that a resumed run trains again, until it has."""
    resumed = [row for row in metrics.events if row["event"] == RESUMED and row["superseded_to"] is not None]
    if not resumed:
        return None
    version, last = resumed[-1]["version"], resumed[-1]["superseded_to"]
    done = metrics.steps[-1]["step"] if metrics.steps else version
    return None if done >= last else (version + 1, last)


def _words(alarm: Row) -> str:
    return f"{alarm.get('text')}{'' if alarm.get('is_on', True) else ' It is over.'}"


def _thinned(rows: Sequence[Any], most: int) -> list[Any]:
    """At most `most` of the rows, evenly, the last one among them."""
    every = -(-len(rows) // most)
    return list(rows[::-1][:: max(1, every)])[::-1]


async def _runs(request: web.Request) -> web.Response:
    runs = request.app[RUNS]
    return await answer(read_lines, runs.all(), [*runs.chains()])


async def _run(request: web.Request) -> web.Response:
    return await answer(read_head, run_of(request))
