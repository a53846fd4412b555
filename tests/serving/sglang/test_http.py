"""Requests to servers."""

from aiohttp import web

from asyncrl.serving.sglang.health import READY_PATH, is_ready
from asyncrl.serving.sglang.http import new_session
from asyncrl.wire.access import Keys


async def test_each_server_is_shown_its_own_key() -> None:
    shown: list[str | None] = []

    async def ready(request: web.Request) -> web.Response:
        shown.append(request.headers.get("Authorization"))
        return web.Response()

    app = web.Application()
    app.router.add_get(READY_PATH, ready)
    runner = web.AppRunner(app)
    await runner.setup()
    for _ in range(2):
        await web.TCPSite(runner, "127.0.0.1", 0).start()
    ours, theirs = (f"http://127.0.0.1:{port}" for _, port in runner.addresses)
    try:
        for keys in (Keys("token", external="key", own=[ours]), Keys("token", own=[ours])):
            async with new_session(keys) as session:
                assert await is_ready(session, ours) and await is_ready(session, theirs)
    finally:
        await runner.cleanup()
    # The token of the run never goes to a server of the user's own.
    assert shown == ["Bearer token", "Bearer key", "Bearer token", None]
