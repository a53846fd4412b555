"""Helpers that all handlers share: the run that a request names, its numbers, the answer as JSON."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from aiohttp import web

from asyncrl.errors import InputError
from asyncrl.readers.page.runs import Run, Runs

REFUSED = "refused"
"""The only key of an answer of an exported page that says why there is none."""
RUNS = web.AppKey("runs", Runs)
T = TypeVar("T")


def run_of(request: web.Request) -> Run:
    """The run of `/api/runs/{run}/...`. Raises HTTPNotFound."""
    name = request.match_info["run"]
    run = request.app[RUNS].get(name)
    if run is None:
        raise web.HTTPNotFound(text=f"There is no run {name}.")
    return run


async def answer(read: Callable[..., T], *arguments: Any) -> web.Response:
    """The result of `read` as JSON; `read` runs in a thread, since it waits for a disk."""
    return web.json_response(await asyncio.to_thread(read, *arguments))


def or_refused(read: Callable[..., T], *arguments: Any) -> T | dict[str, str]:
    """The result of `read`; where files cannot be read, {REFUSED: why}."""
    try:
        return read(*arguments)
    except (InputError, OSError) as error:
        return {REFUSED: str(error)}


def whole(request: web.Request, name: str) -> int | None:
    """A whole number of the query, None where it has none of that name. Raises HTTPBadRequest."""
    text = request.query.get(name)
    if text is None:
        return None
    # A longer one does not fit the journal's 64-bit numbers.
    if len(text) > 18 or not text.removeprefix("-").isdecimal():
        raise web.HTTPBadRequest(text=f"{name} is {text[:40]!r}, expected a whole number.")
    return int(text)
