"""All runs of the page, a line each, and the head of one run."""

from pathlib import Path
from typing import Any, TypedDict

from aiohttp import web

from asyncrl.journal.reader import find_journal
from asyncrl.observe.metrics import read_metrics
from asyncrl.observe.summary import JOURNAL_FILE
from asyncrl.page.request import RUNS, answer, run_of
from asyncrl.page.runs import Run


class Head(TypedDict):
    """What the page shows above every view of a run."""

    name: str
    folder: str
    revision: str
    """Another text whenever the run has written anything."""
    fates: dict[str, int]
    """Groups by fate."""
    steps: list[int] | None
    """The first and the last step whose batch was taken."""
    greedy_accuracy: float | None
    """Of the last evaluation."""
    evaluated_step: int | None


def add_routes(router: web.UrlDispatcher) -> None:
    router.add_get("/api/runs", _runs)
    router.add_get("/api/runs/{run}", _run)


def exported(run: Run, *, num_groups: int) -> dict[str, Any]:
    """The run as the only one; `num_groups` belongs to other parts."""
    head = read_head(run)
    return {"/api/runs": [head], f"/api/runs/{run.name}": head}


def read_head(run: Run) -> Head:
    """Raises InputError where the run's files cannot be read."""
    revision = run.revision()
    journal = find_journal(run.folder / JOURNAL_FILE)
    steps = None if journal is None else journal.step_range()
    evaluations = read_metrics(run.metrics_path).evaluations
    last = evaluations[-1] if evaluations else {}
    return {
        "name": run.name,
        "folder": str(run.folder),
        "revision": revision,
        "fates": {} if journal is None else journal.fates(),
        "steps": list(steps) if steps else None,
        "greedy_accuracy": last.get("greedy_accuracy"),
        "evaluated_step": last.get("step"),
    }


def read_overview(folders: dict[str, Path]) -> list[Head]:
    return [read_head(Run(name, folder)) for name, folder in folders.items()]


async def _runs(request: web.Request) -> web.Response:
    return await answer(read_overview, request.app[RUNS].folders())


async def _run(request: web.Request) -> web.Response:
    return await answer(read_head, run_of(request))
