"""Requests to a server: the session, and what a failure becomes."""

import io
import json
import socket
from collections.abc import Mapping
from typing import Any

import aiohttp

from asyncrl.errors import RequestRefused, ServerError
from asyncrl.wire.access import Keys, bearer

UPDATE_SECONDS = 300.0
"""Longest wait for the answer to one request of a weight update."""
CALL_SECONDS = 30.0
"""Longest wait for the answer to a call that loads nothing."""
PROBE_SECONDS = 5.0
"""Longest wait for the answer to a question about a server's health."""
FAILURES = (aiohttp.ClientError, TimeoutError, OSError, ValueError)
"""Errors that aiohttp raises of a server."""
_REFUSALS = (400, 413, 422)
"""Statuses that are about the request."""
_JSON = {"Content-Type": "application/json"}


def new_session(keys: Keys | None = None) -> aiohttp.ClientSession:
    """A session without a limit on connections and with small buffers. Owner closes it.

    Each server is shown its own of `keys`.
    """
    return aiohttp.ClientSession(
        middlewares=() if keys is None else (_showing(keys),),
        # SGLang closes connections that were idle for 5 s. Reusing one at that moment would look like a
        # server that died.
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=3.0, socket_factory=_probed_socket),
        # Of each stream. What it holds is dealt with in one go: a controller that cannot keep up with its
        # servers is to slow them down, not to leave takes waiting for all that has arrived.
        read_bufsize=2**16,
        timeout=aiohttp.ClientTimeout(total=None),
    )


def _probed_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """One that breaks within minutes when the machine at its other end is gone, or has forgotten it: a stream
    may be silent for long."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family=family, type=kind, proto=protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, 60),
        (socket.TCP_KEEPINTVL, 20),
        (socket.TCP_KEEPCNT, 6),
    ):
        made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made


def _showing(keys: Keys) -> aiohttp.ClientMiddlewareType:
    async def show(
        request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        request.headers.update(bearer(keys.of(str(request.url))))
        return await handler(request)

    return show


async def get_json(
    session: aiohttp.ClientSession, address: str, *, timeout_seconds: float = CALL_SECONDS
) -> Any:
    """None where there is no such address. Raises ServerError."""
    try:
        timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        async with session.get(address, timeout=timeout) as response:
            if response.status == 404:
                return None
            answer = await response.text()
            if response.status != 200:
                raise ServerError(f"{address} answered {response.status}: {answer[:300]}")
            return json.loads(answer)
    except FAILURES as error:
        raise ServerError(f"{address} failed: {type(error).__name__}: {error}") from error


async def post(
    session: aiohttp.ClientSession,
    url: str,
    path: str,
    body: Mapping[str, object] | bytes | None,
    *,
    timeout_seconds: float = UPDATE_SECONDS,
) -> str:
    """The answer to `body`, in bytes if it is JSON already. Raises ServerError, and RequestRefused where the
    server finds the request itself wrong."""
    if isinstance(body, Mapping):
        body = json.dumps(body).encode()
    # As a file: weights in a request are too large to be handed to the socket at once.
    data, headers = (None, None) if body is None else (io.BytesIO(body), _JSON)
    timeout = aiohttp.ClientTimeout(total=timeout_seconds)
    try:
        async with session.post(f"{url}{path}", data=data, headers=headers, timeout=timeout) as response:
            status, answer = response.status, await response.text()
    except FAILURES as error:
        raise ServerError(f"{url}{path} failed: {type(error).__name__}: {error}") from error
    if status != 200:
        kind = RequestRefused if status in _REFUSALS else ServerError
        raise kind(f"{url}{path} answered {status}: {answer[:300]}")
    return answer
