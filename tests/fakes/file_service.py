"""The files of a run folder over HTTP, handed out from a thread, as a controller hands them out."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

from aiohttp import web

from asyncrl.wire.file_service import FileRoutes


@contextlib.contextmanager
def running_files(run_folder: Path) -> Iterator[str]:
    """The URL of a service without a token."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    app = web.Application()
    FileRoutes(None, run_folder).add_to(app)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)

    async def start() -> str:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    try:
        yield asyncio.run_coroutine_threadsafe(start(), loop).result(10)
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
