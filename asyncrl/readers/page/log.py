"""The log of a run: its warnings, each once with its count, and its alarms, the latest first."""

from typing import Any, TypedDict

from aiohttp import web

from asyncrl.observe.metrics.metrics_file import Row
from asyncrl.observe.metrics.warning_log import Warned, warnings_of
from asyncrl.readers.page.request import answer, run_of
from asyncrl.readers.page.runs import Run

ALARM = "alarm"
RESUMED = "resumed"


class Log(TypedDict):
    warnings: list[Warned]
    alarms: list[Row]
    """Alarms as in metrics.jsonl: step, alarm, text, value, limit."""
    starts: list[Row]
    """Resumptions of the run: version and time_seconds."""


def add_routes(router: web.UrlDispatcher) -> None:
    router.add_get("/api/runs/{run}/log", _log)


def exported(run: Run, *, num_groups: int) -> dict[str, Any]:
    return {f"/api/runs/{run.name}/log": read_log(run)}


def read_log(run: Run) -> Log:
    events = run.metrics.read().events
    return Log(
        warnings=warnings_of(events),
        alarms=[row for row in reversed(events) if row["event"] == ALARM],
        starts=[row for row in reversed(events) if row["event"] == RESUMED],
    )


async def _log(request: web.Request) -> web.Response:
    return await answer(read_log, run_of(request))
