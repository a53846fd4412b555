"""The page of runs: one HTML document, served locally or exported with its data inside.

The server binds 127.0.0.1 and answers only to that host name, so no other web site can read a run through the
browser. It reads run folders and writes nothing. Model output reaches the page as text, never as markup.
"""

import asyncio
import contextlib
import functools
import hashlib
import importlib.metadata
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from aiohttp import web

from asyncrl.errors import InputError
from asyncrl.loops import background
from asyncrl.observe.metrics.charts import page_charts
from asyncrl.readers.page import (
    answers,
    chains,
    compared_runs,
    curves,
    evaluations,
    faults,
    groups,
    ledger,
    log,
    overview,
    servers,
)
from asyncrl.readers.page.runs import REFUSED, RUNS, Run, Runs, answer, or_refused, run_of

HOST = "127.0.0.1"
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
    ),
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
}
PARTS = {"": overview, "/curves": curves, "/groups": groups, "/answers": answers, "/ledger": ledger}
"""End of a run's path -> its module with `add_routes(router)`, what it answers, and `exported(run, *,
num_groups)`, what an exported document holds of each run: path -> answer, and path/held -> words for the part
that it holds where that is not all."""
WHOLE: dict[str, Callable[[Run], Any]] = {
    "conservation": ledger.read_books,
    "servers": servers.read_servers,
    "evaluations": evaluations.read_evaluations,
    "faults": faults.read_causes,
    "log": log.read_log,
}
"""End of a run's path -> what is answered and exported, whole."""
STYLES = (
    *("page.css", "charts.css", "overview.css", "curves.css", "groups.css", "servers.css"),
    *("trajectories.css", "compare.css", "evaluations.css", "chains.css"),
)
SHELL = ("shell.js", "charts.js", "turns.js", "search.js")
VIEWS = (
    *("overview.js", "curves.js", "evaluations.js", "groups.js", "answers.js", "ledger.js"),
    *("servers.js", "faults.js", "log.js", "compare.js", "chains.js"),
)
"""Each is a scope of its own: it registers itself in `views` and shares nothing else."""
MOST_AHEAD = 4
"""Runs of which everything is read before the first request; of others their line alone."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def render(answers: dict[str, Any] | None = None) -> str:
    """The document; with `answers`, by path, it needs no server."""
    style = "".join(map(_static, STYLES))
    charts = f"const RUN_CHARTS = {json.dumps(page_charts())};\n"
    script = "".join(
        [*map(_static, SHELL), charts, *(f"{{\n{_static(name)}}}\n" for name in VIEWS), "start();\n"]
    )
    # A raw "<" would let a response with </script> end the element that holds it.
    embedded = json.dumps(answers).replace("<", "\\u003c")
    page = _static("page.html")
    for mark, content in (("STYLE", style), ("SCRIPT", script), ("DATA", embedded)):
        page = page.replace(f"/*{mark}*/", content)
    return page


def export(runs: Sequence[Run], chain_folders: Mapping[str, Path] | None = None, *, num_groups: int) -> str:
    """The document with the runs inside, the newest `num_groups` groups of each among it, and the chains, by
    their names. What cannot be read of one among several runs is said in its place. Raises InputError and
    OSError for a single run."""
    folders = {run.name: run.folder for run in runs}
    named = dict(chain_folders or {})
    found: dict[str, Any] = {
        "/api/exported": {"seconds": time.time(), "version": importlib.metadata.version("asyncrl")},
        "/api/runs": overview.read_lines(runs, [*named]),
        "/api/chains": chains.read_chains(named, folders),
    }
    if len(runs) > 1:
        latest = sorted(runs, key=Run.written_seconds, reverse=True)
        found.update(compared_runs.exported({run.name: run.folder for run in latest}))
    answered = or_refused if len(runs) > 1 else _as_it_is
    for run in runs:
        found.update(_frozen(run, answered, num_groups=num_groups))
    return render(found)


def _as_it_is(read: Callable[..., Any], run: Run) -> Any:
    return read(run)


def _frozen(
    run: Run, answered: Callable[[Callable[..., Any], Run], Any], *, num_groups: int
) -> dict[str, Any]:
    """Path -> answer: all that the page may ask of a run. `answered` calls what reads it."""
    path = f"/api/runs/{run.name}"
    found = {f"{path}/{name}": answered(read, run) for name, read in WHOLE.items()}
    for end, part in PARTS.items():
        held = answered(functools.partial(part.exported, num_groups=num_groups), run)
        found.update({f"{path}{end}": held} if REFUSED in held else held)
    return found


def _read_whole(run: Run) -> None:
    """Reads what the first look at any view of the run would wait for. Raises InputError and OSError."""
    for read in WHOLE.values():
        read(run)
    for part in PARTS.values():
        part.exported(run, num_groups=1)


def make_app(runs: Runs) -> web.Application:
    app = web.Application(middlewares=[_guard])
    app[RUNS] = runs
    page = render()

    async def _page(_: web.Request) -> web.Response:
        return web.Response(text=page, content_type="text/html")

    app.router.add_get("/", _page)
    for part in (*PARTS.values(), compared_runs, chains):
        part.add_routes(app.router)
    for name, read in WHOLE.items():
        app.router.add_get(f"/api/runs/{{run}}/{name}", functools.partial(_whole, read))
    return app


async def serve(runs: Runs, *, port: int, until: asyncio.Event, ready: Callable[[str], None]) -> None:
    """Serves until `until` is set; `ready` is called with the URL. Raises OSError when the port is taken."""
    runner = web.AppRunner(make_app(runs), access_log=None)
    await runner.setup()
    try:
        async with background(_read_ahead(runs), "read ahead"):
            await web.TCPSite(runner, HOST, port).start()
            ready(f"http://{HOST}:{runner.addresses[0][1]}/")
            await until.wait()
    finally:
        await runner.cleanup()


async def _read_ahead(runs: Runs) -> None:
    """Reads what the first look at each run would wait for; first the runs that were written last."""
    for index, run in enumerate(sorted(runs.all(), key=Run.written_seconds, reverse=True)):
        # A request for it reports the error.
        with contextlib.suppress(InputError, OSError):
            await asyncio.to_thread(_read_whole if index < MOST_AHEAD else overview.read_line, run)


async def _whole(read: Callable[[Run], Any], request: web.Request) -> web.Response:
    return await answer(read, run_of(request))


@web.middleware
async def _guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuses other host names; says in a sentence what of a run cannot be read."""
    if request.url.host not in (HOST, "localhost"):
        raise web.HTTPForbidden(text=f"This page only answers as {HOST}.")
    try:
        response = await handler(request)
    except InputError as error:
        raise web.HTTPConflict(text=str(error)) from error
    if isinstance(response, web.Response) and isinstance(response.body, bytes):
        # Not for the browser's cache: the page keeps its last answers itself.
        response.etag = hashlib.blake2b(response.body, digest_size=16).hexdigest()
        if response.etag in (request.if_none_match or ()):
            response = web.Response(status=304)
    response.headers.update(HEADERS)
    return response


def _static(name: str) -> str:
    return (resources.files("asyncrl.readers.page") / "static" / name).read_text(encoding="utf-8")
