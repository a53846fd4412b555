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
from asyncrl.readers.page import groups, overview, views
from asyncrl.readers.page.runs import REFUSED, RUNS, Run, Runs, answer, or_refused, run_of

HOST = "127.0.0.1"
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
    ),
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
WHOLE: dict[str, Callable[[Run], Any]] = {
    "": overview.read_head,
    "/conservation": views.read_books,
    "/servers": views.read_servers,
    "/evaluations": views.read_evaluations,
    "/faults": views.read_causes,
    "/log": views.read_log,
}
"""End of a run's path -> what is answered and exported, whole."""
HELD: dict[str, Callable[[Run, int], dict[str, Any]]] = {
    "/curves": views.hold_curves,
    "/groups": groups.hold_groups,
    "/answers": views.hold_answers,
    "/ledger": views.hold_ledger,
}
"""End of a run's path -> what an exported document holds of the run and its newest groups: path -> answer,
and path/held -> words for the part that it holds where that is not all."""
GROUP = r"/api/runs/{run}/groups/{group_id:\d{1,18}}"
ROUTES: dict[str, Handler] = {
    "/api/runs": overview.ask_lines,
    "/api/chains": overview.ask_chains,
    "/api/compare": overview.ask_comparison,
    "/api/compare/answers": overview.ask_differing,
    "/api/runs/{run}/curves": views.ask_curves,
    "/api/runs/{run}/answers": views.ask_answers,
    "/api/runs/{run}/ledger": views.ask_ledger,
    "/api/runs/{run}/search": groups.ask_search,
    "/api/runs/{run}/groups": groups.ask_groups,
    GROUP: groups.ask_group,
    GROUP + r"/{sample:\d{1,18}}": groups.ask_trajectory,
    GROUP + r"/{sample:\d{1,18}}.{branch:\d{1,9}}": groups.ask_trajectory,
}
"""Path of a request that has a query or is of no single run -> its handler."""
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
        "/api/chains": overview.read_chains(named, folders),
    }
    if len(runs) > 1:
        latest = sorted(runs, key=Run.written_seconds, reverse=True)
        found.update(overview.hold_comparisons({run.name: run.folder for run in latest}))

    def answered(read: Callable[..., Any], *arguments: Any) -> Any:
        return or_refused(read, *arguments) if len(runs) > 1 else read(*arguments)

    for run in runs:
        path = f"/api/runs/{run.name}"
        found.update({f"{path}{end}": answered(read, run) for end, read in WHOLE.items()})
        for end, hold in HELD.items():
            held = answered(hold, run, num_groups)
            found.update({f"{path}{end}": held} if REFUSED in held else held)
    return render(found)


def _read_whole(run: Run) -> None:
    """Reads what the first look at any view of the run would wait for. Raises InputError and OSError."""
    for read in WHOLE.values():
        read(run)
    for hold in HELD.values():
        hold(run, 1)


def make_app(runs: Runs) -> web.Application:
    app = web.Application(middlewares=[_guard])
    app[RUNS] = runs
    page = render()

    async def _page(_: web.Request) -> web.Response:
        return web.Response(text=page, content_type="text/html")

    app.router.add_get("/", _page)
    for path, handler in ROUTES.items():
        app.router.add_get(path, handler)
    for end, read in WHOLE.items():
        app.router.add_get(f"/api/runs/{{run}}{end}", functools.partial(_whole, read))
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
