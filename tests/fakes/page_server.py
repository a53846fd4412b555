"""A page of runs that is served while a test uses it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from asyncrl.readers.page.app import serve
from asyncrl.readers.page.runs import Runs

LIMIT_SECONDS = 60


@asynccontextmanager
async def served(*folders: Path) -> AsyncIterator[str]:
    """The URL, which ends with a slash."""
    until = asyncio.Event()
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    server = asyncio.create_task(serve(Runs(folders), port=0, until=until, ready=url.set_result))
    try:
        yield await asyncio.wait_for(url, LIMIT_SECONDS)
    finally:
        until.set()
        await server
