"""One package of asyncrl knows the engine's endpoints; the calls themselves run against a real server
elsewhere: serving/engine/, trainer/publishing/test_transports.py, end_to_end/."""

import ast
from pathlib import Path

from aiohttp import web

import asyncrl
from asyncrl.serving import sglang
from asyncrl.serving.sglang.health import READY_PATH, is_ready
from asyncrl.serving.sglang.http import new_session
from asyncrl.wire.access import Keys

PACKAGE = Path(asyncrl.__file__).parent
ENDPOINTS_FOLDER = Path(sglang.__file__).parent


def strings_of(file: Path) -> set[str]:
    """All string literals, parts of f-strings too, except docstrings."""
    tree = ast.parse(file.read_text())
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose
    }


def test_no_other_package_names_an_endpoint_of_the_engine() -> None:
    strings = set().union(*(strings_of(file) for file in ENDPOINTS_FOLDER.glob("*.py")))
    endpoints = {text for text in strings if text.startswith("/") and " " not in text}
    assert {"/generate", "/pause_generation", "/weights_checker", "/ready"} <= endpoints
    for file in PACKAGE.rglob("*.py"):
        if file.parent != ENDPOINTS_FOLDER:
            named = {text for text in strings_of(file) for path in endpoints if text.startswith(path)}
            assert not named, f"{file.relative_to(PACKAGE)} names {named}"


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
