"""Runs of the page side by side, and the held-out tasks that two of them answered differently.

`runs` of a query are names of the page, with commas in between; the first is the one that others are compared
with. A comparison is computed again only after one of its runs has written a row of metrics, which it does
after each evaluation.
"""

import functools
import itertools
from pathlib import Path
from typing import Any, TypedDict

from aiohttp import web

from asyncrl.errors import InputError
from asyncrl.readers.compare.contest import KINDS, DifferingAnswers, Kind, differing_answers
from asyncrl.readers.compare.recorded import open_runs
from asyncrl.readers.compare.run_comparison import Comparison, compare
from asyncrl.readers.page.runs import RUNS, answer, or_refused, stamp, whole
from asyncrl.system.places import METRICS

MOST_RUNS = 64
MOST_KEPT = 8
"""Comparisons that are remembered."""
TASKS_PER_ANSWER = 20
MOST_EXPORTED = 8
"""Runs that an exported document compares: all of them, and each pair, with its answers."""


class Compared(TypedDict):
    revision: str
    """Changes whenever one of the runs has written a row of metrics."""
    comparison: Comparison | None
    """None where the page has this revision already."""


@functools.lru_cache(maxsize=MOST_KEPT)
def _compared(revision: str, folders: tuple[tuple[str, Path], ...]) -> Comparison:
    """`revision` says what the files hold; `folders` are name and folder of each run."""
    return compare(open_runs([folder for _, folder in folders], [name for name, _ in folders]))


def read_comparison(folders: dict[str, Path], after: str) -> Compared:
    revision = _revision(folders)
    if revision == after:
        return {"revision": revision, "comparison": None}
    return {"revision": revision, "comparison": _compared(revision, tuple(folders.items()))}


def add_routes(router: web.UrlDispatcher) -> None:
    router.add_get("/api/compare", _comparison)
    router.add_get("/api/compare/answers", _answers)


def exported(folders: dict[str, Path]) -> dict[str, Any]:
    """The first `MOST_EXPORTED` runs that can be read, side by side in the order of their names, and each
    pair of them with the first tasks that it answered differently: path -> answer."""
    readable = (name for name, folder in folders.items() if _is_readable(folder))
    names = sorted(itertools.islice(readable, MOST_EXPORTED))
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


async def _comparison(request: web.Request) -> web.Response:
    return await answer(read_comparison, _folders(request), request.query.get("after", ""))


def read_answers(folders: dict[str, Path], kind: Kind, offset: int) -> DifferingAnswers:
    first, second = open_runs([*folders.values()], [*folders])
    return differing_answers(first, second, kind=kind, offset=offset, limit=TASKS_PER_ANSWER)


async def _answers(request: web.Request) -> web.Response:
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


def _revision(folders: dict[str, Path]) -> str:
    return " ".join(f"{name}:{stamp(folder / METRICS)}" for name, folder in folders.items())
