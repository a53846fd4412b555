"""The page of trajectories: one HTML document, served locally or exported with its data inside.

The server binds 127.0.0.1 and answers only to that host name, so no other web site can read a run through the
browser. Model output reaches the page as text, never as markup.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from importlib import resources
from typing import Any

from aiohttp import web

from asyncrl.journal.reader import GroupFilter
from asyncrl.observe.browser import Browser

HOST = "127.0.0.1"
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
    ),
    "Cache-Control": "no-store",
}
BROWSER = web.AppKey("browser", Browser)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def render(data: dict[str, Any] | None = None) -> str:
    """The document; with `data` it needs no server."""
    static = resources.files("asyncrl.observe") / "static"
    page, style, script = (
        (static / name).read_text(encoding="utf-8") for name in ("view.html", "view.css", "view.js")
    )
    # A raw "<" would let a response with </script> end the element that holds it.
    embedded = json.dumps(data).replace("<", "\\u003c")
    for mark, content in (("STYLE", style), ("SCRIPT", script), ("DATA", embedded)):
        page = page.replace(f"/*{mark}*/", content)
    return page


def export(browser: Browser, *, num_groups: int) -> str:
    """The document with the newest `num_groups` groups inside."""
    groups = browser.groups(GroupFilter(limit=num_groups))
    details = {row["group_id"]: browser.group(row["group_id"]) for row in groups}
    return render({"overview": browser.overview(), "groups": groups, "details": details})


def make_app(browser: Browser) -> web.Application:
    app = web.Application(middlewares=[_refuse_other_hosts])
    app[BROWSER] = browser
    app.router.add_get("/", _page)
    app.router.add_get("/api/overview", _overview)
    app.router.add_get("/api/groups", _groups)
    app.router.add_get(r"/api/groups/{group_id:\d{1,18}}", _group)
    return app


async def serve(browser: Browser, *, port: int, until: asyncio.Event, ready: Callable[[str], None]) -> None:
    """Serves until `until` is set; `ready` is called with the URL. Raises OSError when the port is taken."""
    runner = web.AppRunner(make_app(browser), access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, HOST, port)
        await site.start()
        ready(f"http://{HOST}:{runner.addresses[0][1]}/")
        await until.wait()
    finally:
        await runner.cleanup()


@web.middleware
async def _refuse_other_hosts(request: web.Request, handler: Handler) -> web.StreamResponse:
    if request.url.host not in (HOST, "localhost"):
        raise web.HTTPForbidden(text=f"This page only answers as {HOST}.")
    response = await handler(request)
    response.headers.update(HEADERS)
    return response


async def _page(_: web.Request) -> web.Response:
    return web.Response(text=render(), content_type="text/html")


async def _overview(request: web.Request) -> web.Response:
    return web.json_response(await asyncio.to_thread(request.app[BROWSER].overview))


async def _groups(request: web.Request) -> web.Response:
    query = request.query
    try:
        wanted = GroupFilter(
            state=query.get("state"),
            step=_whole(query.get("step")),
            outcome=query.get("outcome"),
            before=_whole(query.get("before")),
        )
    except ValueError:
        raise web.HTTPBadRequest(text="step and before are whole numbers") from None
    return web.json_response(await asyncio.to_thread(request.app[BROWSER].groups, wanted))


async def _group(request: web.Request) -> web.Response:
    group_id = int(request.match_info["group_id"])
    group = await asyncio.to_thread(request.app[BROWSER].group, group_id)
    if group is None:
        raise web.HTTPNotFound(text=f"There is no group {group_id}.")
    return web.json_response(group)


def _whole(text: str | None) -> int | None:
    if text is not None and len(text) > 18:
        raise ValueError(f"{text} does not fit the journal's 64-bit numbers.")
    return None if text is None else int(text)
