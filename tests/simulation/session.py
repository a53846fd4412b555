"""What the clients use of aiohttp's ClientSession, on simulated servers: latency, refusals, timeouts."""

import asyncio
import io
import json as json_module
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp
from simulation.channel import Channel
from simulation.server import SimulatedServer
from simulation.world import World

NO_TIMEOUT = aiohttp.ClientTimeout(total=None)
LATENCY_SECONDS = 0.002


class SimulatedSession:
    """`cut` ends it as a kill -9 of its process would."""

    def __init__(
        self,
        world: World,
        servers: dict[str, SimulatedServer],
        *,
        timeout: aiohttp.ClientTimeout = NO_TIMEOUT,
    ) -> None:
        self.world = world
        self.servers = servers
        self.timeout = timeout
        self.is_cut = False

    def post(
        self,
        url: str,
        *,
        json: Any = None,
        data: io.BytesIO | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: aiohttp.ClientTimeout | None = None,
    ) -> "_Exchange":
        body = json if data is None else json_module.loads(data.getvalue())
        return _Exchange(self, url, body, timeout or self.timeout)

    def get(self, url: str, *, timeout: aiohttp.ClientTimeout | None = None) -> "_Exchange":
        return _Exchange(self, url, None, timeout or self.timeout)

    def cut(self) -> None:
        self.is_cut = True


class _Exchange:
    """One request, as the context manager that aiohttp returns; itself the response once entered."""

    def __init__(
        self, session: SimulatedSession, url: str, body: Any, timeout: aiohttp.ClientTimeout
    ) -> None:
        base, _, path = url.removeprefix("http://").partition("/")
        self._session = session
        self._server = session.servers[f"http://{base}"]
        self._path = f"/{path}"
        self._body = body
        self._timeout = timeout
        self._channel: Channel | None = None
        self.status = 0
        self._answer: Any = None

    async def __aenter__(self) -> "_Exchange":
        async with asyncio.timeout(self._timeout.total):
            await asyncio.sleep(self._session.world.delay(LATENCY_SECONDS))
            if self._session.is_cut or not self._server.is_up:
                raise aiohttp.ClientConnectionError("nobody listens")
            if self._path == "/generate":
                self.status, self._channel = 200, self._server.generate(self._body)
            else:
                self.status, self._answer = await self._server.call(self._path, self._body)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._channel is not None:
            self._server.hang_up(self._channel)

    async def text(self) -> str:
        return json_module.dumps(self._answer)

    async def json(self, *, content_type: str | None = None) -> Any:
        return self._answer

    @property
    def content(self) -> "_Exchange":
        return self

    async def iter_any(self) -> AsyncIterator[bytes]:
        assert self._channel is not None
        while True:
            try:
                async with asyncio.timeout(self._timeout.sock_read):
                    line = await self._channel.get()
            except TimeoutError:
                raise aiohttp.SocketTimeoutError("no event came in time") from None
            if line is None or self._session.is_cut:
                return
            self._count(line)
            yield line + b"\n"

    def _count(self, line: bytes) -> None:
        """Tokens of training requests; a garbled line makes the count inexact, which the world knows."""
        if line.endswith(b"}") and b"-eval-" not in line:
            self._session.world.num_delivered_tokens += len(json_module.loads(line[5:])["output_ids"])
