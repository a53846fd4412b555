"""The curves of a run: columns of metrics.jsonl over its steps, and its evaluations.

A page that follows a run asks with the cursor of its last answer and gets only the steps since then. The
cursor is a place in the file; the page drops what a resumed run superseded, as `MetricsFollower` does.
"""

from collections.abc import Sequence
from typing import Any, TypedDict

from aiohttp import web

from asyncrl.observe.metrics.charts import evaluated_columns
from asyncrl.readers.page.runs import Run, answer, run_of
from asyncrl.run.metrics_file import Row


class Curves(TypedDict):
    cursor: str
    """Cursor of the page's next request."""
    is_whole: bool
    """Whether the page has to forget what it has."""
    keep_to: int | None
    """The last of the page's steps that still holds; None: all of them."""
    steps: list[int]
    columns: dict[str, list[float | None]]
    """Column that was asked for -> a value per step."""
    seconds: list[float]
    """Unix time of each step."""
    names: list[str]
    """All numeric columns among these rows."""
    evaluations: list[dict[str, Any]]
    """All of the run, in order of steps."""
    sets: list[dict[str, Any]]
    """All evaluations of benchmarks and named sets: name, step, and their accuracy, greedy or avg@k."""


def add_routes(router: web.UrlDispatcher) -> None:
    router.add_get("/api/runs/{run}/curves", _curves)


def exported(run: Run, *, num_groups: int) -> dict[str, Any]:
    """All columns; `num_groups` belongs to other parts."""
    names = read_curves(run, [], "")["names"]
    return {f"/api/runs/{run.name}/curves": read_curves(run, names, "")}


def read_curves(run: Run, columns: Sequence[str], cursor: str) -> Curves:
    """The part of the curves that a page at `cursor` lacks ("": all). Raises InputError for a broken file."""
    generation, _, offset = cursor.partition("-")
    after = int(offset) if offset.isdecimal() and len(offset) < 18 else 0
    added = run.metrics.read_after(after)
    is_whole = not after or generation != str(added.generation)
    if is_whole and after:
        added = run.metrics.read_after(0)
    return {
        "cursor": f"{added.generation}-{added.offset}",
        "is_whole": is_whole,
        "keep_to": added.keep_to,
        "steps": [int(row["step"]) for row in added.steps],
        "columns": {name: [_number(row.get(name)) for row in added.steps] for name in columns},
        "seconds": [row["time_seconds"] for row in added.steps],
        "names": _numeric(added.steps),
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


async def _curves(request: web.Request) -> web.Response:
    columns = [name for name in request.query.get("columns", "").split(",") if name]
    return await answer(read_curves, run_of(request), columns, request.query.get("after", ""))
