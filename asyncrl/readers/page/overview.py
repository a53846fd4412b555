"""All runs and chains of the page: a line for each run, chains as stories, and runs side by side.

The line of one run is the head of its views. `runs` of a query are names of the page, with commas in between;
the first is the one that others are compared with. A comparison is computed again only after one of its runs
has written a row of metrics, which it does after each evaluation.
"""

import functools
import itertools
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from aiohttp import web

from asyncrl.errors import InputError
from asyncrl.readers.chain.story import read_story
from asyncrl.readers.chain.tables import brought, cost
from asyncrl.readers.compare.contest import KINDS, Kind, differing_answers
from asyncrl.readers.compare.recorded import open_runs
from asyncrl.readers.compare.run_comparison import Comparison, compare
from asyncrl.readers.page.runs import RUNS, Run, answer, or_refused, whole
from asyncrl.readers.status import cause_of, stamp, state_of
from asyncrl.run.metrics_file import RESUMED, Metrics, Row
from asyncrl.run.status import read_status
from asyncrl.system.places import METRICS

MOST_POINTS = 60
"""Evaluations of a sparkline."""


def read_line(run: Run) -> dict[str, Any]:
    """The run in the overview, and the head of every view of it; it says what cannot be read, so that the
    other runs are still shown."""
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
        # As the run reports it, or "no longer running"; None where it wrote no status.
        "state": state,
        "cause": cause_of(run.folder) if state == "failed" else None,
        "step": step,
        "total_steps": total_steps,
        # First and last step of those that a resumed run trains again.
        "again": _again(metrics),
        "accuracies": [[row["step"], row["greedy_accuracy"]] for row in _thinned(evaluations, MOST_POINTS)],
        "low": last.get("greedy_low"),
        "high": last.get("greedy_high"),
        "reward": metrics.steps[-1].get("reward_mean") if metrics.steps else None,
        # The last one.
        "alarm": _sentence(alarm) if alarm else None,
        "alarm_step": alarm.get("step"),
        # Unix times of its first and last row.
        "begun_seconds": min(times, default=None),
        "written_seconds": max(times, default=None),
        # Why the run cannot be read.
        "problem": problem,
    }


def read_head(run: Run) -> dict[str, Any]:
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


def _sentence(alarm: Row) -> str:
    return f"{alarm.get('text')}{'' if alarm.get('is_on', True) else ' It is over.'}"


def _thinned(rows: Sequence[Row], most: int) -> list[Row]:
    """At most `most` of the rows, evenly, the last one among them."""
    every = max(1, -(-len(rows) // most))
    return list(rows[::-every])[::-1]


async def ask_lines(request: web.Request) -> web.Response:
    runs = request.app[RUNS]
    return await answer(read_lines, runs.all(), [*runs.chains()])


def read_chains(folders: dict[str, Path], runs: dict[str, Path]) -> list[dict[str, Any]]:
    """Each chain as the page shows it. `story` is as report.json has it, `runs` is number of a stage -> the
    name of its run on this page, `problem` why the chain cannot be read. `folders` and `runs`: name on the
    page -> folder."""
    names = {folder: name for name, folder in runs.items()}
    return [_shown(name, folder, names) for name, folder in folders.items()]


def _shown(name: str, folder: Path, names: dict[Path, str]) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "name": name,
        "state": "",
        "story": {},
        "tables": [],
        "runs": {},
        "problem": None,
    }
    try:
        story = read_story(folder)
    except (InputError, OSError) as error:
        return {**shown, "problem": str(error)}
    there = {str(stage.number): names.get(Path(stage.place)) for stage in story.stages}
    return {
        **shown,
        "state": story.state,
        "story": story.model_dump(mode="json"),
        # The cards have what each stage began with and made.
        "tables": [asdict(table) for table in (*brought(story), cost(story)) if table.rows],
        "runs": {number: run for number, run in there.items() if run is not None},
    }


async def ask_chains(request: web.Request) -> web.Response:
    runs = request.app[RUNS]
    return await answer(read_chains, runs.chains(), runs.folders())


MOST_RUNS = 64
MOST_COMPARED = 8
"""Comparisons that are remembered."""
TASKS_PER_ANSWER = 20
MOST_HELD = 8
"""Runs that an exported document compares: all of them, and each pair, with its answers."""


@functools.lru_cache(maxsize=MOST_COMPARED)
def _compared(revision: str, folders: tuple[tuple[str, Path], ...]) -> Comparison:
    """`revision` says what the files hold; `folders` are name and folder of each run."""
    return compare(open_runs([folder for _, folder in folders], [name for name, _ in folders]))


def read_comparison(folders: dict[str, Path], after: str) -> dict[str, Any]:
    """`revision` changes whenever one of the runs has written a row of metrics; `comparison` is None where
    the page has this revision already."""
    revision = " ".join(f"{name}:{stamp(folder / METRICS)}" for name, folder in folders.items())
    if revision == after:
        return {"revision": revision, "comparison": None}
    return {"revision": revision, "comparison": _compared(revision, tuple(folders.items()))}


def hold_comparisons(folders: dict[str, Path]) -> dict[str, Any]:
    """The first `MOST_HELD` runs that can be read, side by side in the order of their names, and each
    pair of them with the first tasks that it answered differently: path -> answer."""
    readable = (name for name, folder in folders.items() if _is_readable(folder))
    names = sorted(itertools.islice(readable, MOST_HELD))
    found: dict[str, Any] = {"/api/compare": names}
    if len(names) < len(folders):
        held = f"the comparison of {len(names)} runs: those that wrote last and can be read"
        found["/api/compare/held"] = held
    whole = [tuple(names)] if len(names) > 1 else []
    for chosen in dict.fromkeys([*whole, *itertools.permutations(names, 2)]):
        sides = {name: folders[name] for name in chosen}
        found[f"/api/compare?runs={','.join(chosen)}&after="] = or_refused(read_comparison, sides, "")
        for kind in KINDS if len(chosen) == 2 else ():
            path = f"/api/compare/answers?runs={','.join(chosen)}&kind={kind}&offset=0"
            found[path] = or_refused(read_answers, sides, kind, 0)
    return found


def _is_readable(folder: Path) -> bool:
    try:
        open_runs([folder])
    except (InputError, OSError):
        return False
    return True


async def ask_comparison(request: web.Request) -> web.Response:
    return await answer(read_comparison, _folders(request), request.query.get("after", ""))


def read_answers(folders: dict[str, Path], kind: Kind, offset: int) -> dict[str, Any]:
    first, second = open_runs([*folders.values()], [*folders])
    return differing_answers(first, second, kind=kind, offset=offset, limit=TASKS_PER_ANSWER)


async def ask_differing(request: web.Request) -> web.Response:
    folders = _folders(request)
    if len(folders) != 2:
        raise web.HTTPBadRequest(text=f"runs names {len(folders)} runs, expected two.")
    kind = next((known for known in KINDS if known == request.query.get("kind", KINDS[0])), None)
    if kind is None:
        raise web.HTTPBadRequest(text=f"kind is none of {', '.join(KINDS)}.")
    return await answer(read_answers, folders, kind, max(0, whole(request, "offset") or 0))


def _folders(request: web.Request) -> dict[str, Path]:
    """Name -> folder of the runs of the query, in its order. Raises HTTPNotFound and HTTPBadRequest."""
    there = request.app[RUNS].folders()
    names = dict.fromkeys(name for name in request.query.get("runs", "").split(",") if name)
    if not 2 <= len(names) <= MOST_RUNS:
        raise web.HTTPBadRequest(text=f"runs names {len(names)} runs, expected 2 to {MOST_RUNS}.")
    lacking = [name for name in names if name not in there]
    if lacking:
        raise web.HTTPNotFound(text=f"There is no run {lacking[0]}.")
    return {name: there[name] for name in names}
