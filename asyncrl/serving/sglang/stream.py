"""Generation: one request to a server, streamed."""

from collections.abc import AsyncIterator

import aiohttp

from asyncrl.errors import ServerError
from asyncrl.serving.sglang import http
from asyncrl.serving.sglang.messages import Chunk, ServedColumn, parse_event


async def stream(
    session: aiohttp.ClientSession,
    url: str,
    body: dict[str, object],
    columns: tuple[ServedColumn, ...] = (),
) -> AsyncIterator[Chunk]:
    """Chunks of a streamed /generate that asks for `columns`, until every request in it has ended.

    Raises ServerError on a refusal and on a broken connection. It waits as long as the connection stands: a
    request may wait for others on its server.
    """
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10.0)
    try:
        async with session.post(f"{url}/generate", json=body, timeout=timeout) as response:
            if response.status != 200:
                text = await response.text()
                raise ServerError(f"{url}/generate answered {response.status}: {text[:500]}")
            rest = b""
            # All that has arrived at once: a read for each line costs more than what is done with it.
            async for data in response.content.iter_any():
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    if not line.startswith(b"data:"):
                        continue
                    event = line[5:].strip()
                    if event == b"[DONE]":
                        return
                    yield parse_event(event, columns)
    except http.FAILURES as error:
        raise ServerError(f"{url} broke off: {type(error).__name__}: {error}") from error
    raise ServerError(f"{url} closed a stream before its end")
