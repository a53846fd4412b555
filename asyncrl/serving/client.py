"""One rollout server over HTTP: streaming generation, aborts, readiness. Knows no tasks and no weights."""

import asyncio
from collections.abc import AsyncIterator

import aiohttp

from asyncrl.errors import ServerError, ServerSilent
from asyncrl.serving.wire import Chunk, parse_event

_FAILURES = (aiohttp.ClientError, TimeoutError, OSError, ValueError)


def new_session() -> aiohttp.ClientSession:
    """A session without a limit on connections and with room for long event lines. Owner closes it."""
    return aiohttp.ClientSession(
        # SGLang closes connections that were idle for 5 s: reusing one at that moment looks like a dead
        # server.
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=3.0),
        read_bufsize=2**22,
        timeout=aiohttp.ClientTimeout(total=None),
    )


async def stream(
    session: aiohttp.ClientSession, url: str, body: dict[str, object], *, silence_seconds: float
) -> AsyncIterator[Chunk]:
    """Chunks of a streamed /generate, until every request in it has ended.

    Raises ServerError on a refusal or a broken connection, ServerSilent after `silence_seconds` without a
    chunk.
    """
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=silence_seconds)
    try:
        async with session.post(f"{url}/generate", json=body, timeout=timeout) as response:
            if response.status != 200:
                text = await response.text()
                raise ServerError(f"{url}/generate answered {response.status}: {text[:500]}")
            async for line in response.content:
                if not line.startswith(b"data:"):
                    continue
                data = line[5:].strip()
                if data == b"[DONE]":
                    return
                yield parse_event(data)
    except aiohttp.SocketTimeoutError as error:
        raise ServerSilent(f"{url} streamed nothing for {silence_seconds:.0f} s") from error
    except _FAILURES as error:
        raise ServerError(f"{url} broke off: {type(error).__name__}: {error}") from error
    raise ServerError(f"{url} closed a stream before its end")


async def abort(session: aiohttp.ClientSession, url: str, request_id: str) -> None:
    """Ends one running request early; its stream then carries what it has. Raises ServerError."""
    await _post(session, url, "/abort_request", {"rid": request_id})


async def continue_generation(session: aiohttp.ClientSession, url: str) -> None:
    """Lifts a pause, also one that a publisher left behind when it died. Raises ServerError."""
    await _post(session, url, "/continue_generation", {"torch_empty_cache": False})


async def is_ready(session: aiohttp.ClientSession, url: str) -> bool:
    """Whether the server answers that it can serve; False while it starts or when nobody listens."""
    try:
        async with session.get(f"{url}/ready", timeout=aiohttp.ClientTimeout(total=5.0)) as response:
            return response.status == 200
    except _FAILURES:
        return False


async def weight_version(session: aiohttp.ClientSession, url: str) -> str | None:
    """The label of the weights that the server holds now; None when it does not answer that it can serve."""
    if not await is_ready(session, url):
        return None
    try:
        async with session.get(f"{url}/model_info", timeout=aiohttp.ClientTimeout(total=5.0)) as response:
            answer = await response.json(content_type=None)
            return str(answer["weight_version"]) if response.status == 200 else None
    except (*_FAILURES, KeyError, TypeError):
        return None


async def wait_until_ready(session: aiohttp.ClientSession, url: str, *, timeout_seconds: float) -> None:
    """Raises ServerError when the server is not ready within `timeout_seconds`."""
    deadline = asyncio.get_running_loop().time() + timeout_seconds
    while not await is_ready(session, url):
        if asyncio.get_running_loop().time() > deadline:
            raise ServerError(
                f"{url} was not ready within {timeout_seconds:.0f} s. Is it an SGLang 0.5.23 server? "
                f"Raise serving.start_timeout_seconds if it is only slow."
            )
        await asyncio.sleep(0.1)


async def _post(session: aiohttp.ClientSession, url: str, path: str, body: dict[str, object]) -> None:
    try:
        async with session.post(
            f"{url}{path}", json=body, timeout=aiohttp.ClientTimeout(total=30.0)
        ) as response:
            if response.status != 200:
                raise ServerError(f"{url}{path} answered {response.status}: {(await response.text())[:300]}")
    except _FAILURES as error:
        raise ServerError(f"{url}{path} failed: {type(error).__name__}: {error}") from error
