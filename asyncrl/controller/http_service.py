"""The controller's end of wire 2: HTTP around the answers to `take`, `drain` and `commit`.

Owns no state, only the rule that a request without a token gets 401, except for GET /health, and GET /metrics
where the recipe opens it. A take, drain or commit that is not ready within POLL_SECONDS is answered 204 and
asked again, so that a waiting trainer knows the controller alive.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec
from aiohttp import web

from asyncrl.errors import AsyncrlError
from asyncrl.recipe.sections.serving import LOOPBACK
from asyncrl.wire.access import Keys, is_shown
from asyncrl.wire.file_service import PREFIX, FileRoutes
from asyncrl.wire.messages import (
    COMMIT_PATH,
    DRAIN_PATH,
    POLL_SECONDS,
    TAKE_PATH,
    CommitRequest,
    DrainRequest,
    TakeReply,
    TakeRequest,
    encode_take,
)


class Endpoint:
    """Built before the parts that name its URL, which is known once the service listens."""

    def __init__(self, host: str = LOOPBACK, port: int = 0, *, advertised_host: str = "") -> None:
        """`port` 0 is any that is free. Others use `advertised_host` where that is not `host`."""
        self.host = host
        self.port = port
        self._advertised_host = advertised_host or host
        self._bound_port: int | None = None

    def listens_on(self, port: int) -> None:
        """The service has bound this port."""
        self._bound_port = port

    def url(self) -> str:
        assert self._bound_port is not None, "the service listens before its URL is used"
        return f"http://{self._advertised_host}:{self._bound_port}"


class Requests(Protocol):
    """The answers to the trainer; each raises AsyncrlError for a request that it refuses."""

    async def take(self, request: TakeRequest, wait_seconds: float) -> TakeReply | None: ...

    async def drain(self, request: DrainRequest, wait_seconds: float) -> bool:
        """Whether nothing is generated any more."""
        ...

    async def commit(self, request: CommitRequest, wait_seconds: float) -> bool: ...


class Scraped(Protocol):
    """The source of GET /metrics."""

    content_type: str

    def text(self) -> str: ...


SERVERS_PATH = "/servers"
HEALTH_PATH = "/health"
METRICS_PATH = "/metrics"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ControllerService:
    """Serves at `endpoint`, whose URL is known after `start`."""

    def __init__(
        self,
        requests: Requests,
        *,
        endpoint: Endpoint | None = None,
        keys: Keys | None = None,
        servers: Callable[[str, str], list[dict[str, Any]]] | None = None,
        files: FileRoutes | None = None,
        metrics: Scraped | None = None,
        has_open_metrics: bool = False,
    ) -> None:
        """Without a token in `keys` no request needs one; servers of the user's own show their key to fetch
        `files`. `servers` is given "add", "remove" or "list" and a URL, and answers what is known of each
        server then. Paths of parts that are not given are not there."""
        self._requests = requests
        self._endpoint = endpoint or Endpoint()
        self._keys = keys or Keys()
        self._servers = servers
        self._files = files
        self._metrics = metrics
        self._open_paths = {HEALTH_PATH} | ({METRICS_PATH} if has_open_metrics else set())
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return self._endpoint.url()

    async def start(self) -> None:
        app = web.Application(client_max_size=2**30, middlewares=[self._check_token])
        app.router.add_get(HEALTH_PATH, self._on_health)
        if self._metrics is not None:
            app.router.add_get(METRICS_PATH, self._on_metrics)
        for path, kind, call in (
            (TAKE_PATH, TakeRequest, self._requests.take),
            (DRAIN_PATH, DrainRequest, self._requests.drain),
            (COMMIT_PATH, CommitRequest, self._requests.commit),
        ):
            app.router.add_post(path, functools.partial(self._on_call, kind, call))
        if self._servers is not None:
            app.router.add_post(SERVERS_PATH, self._on_servers)
        if self._files is not None:
            self._files.add_to(app)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._endpoint.host, self._endpoint.port)
        await site.start()
        self._endpoint.listens_on(self._runner.addresses[0][1])

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    @web.middleware
    async def _check_token(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self._keys.token and not self._is_allowed(request):
            return web.Response(status=401, text="this needs the run's token (access.token in its folder)")
        return await handler(request)

    def _is_allowed(self, request: web.Request) -> bool:
        is_read = request.method == "GET"
        shown = request.headers.get("Authorization")
        if is_shown(self._keys.token, shown) or (is_read and request.path in self._open_paths):
            return True
        is_file = is_read and request.path.startswith(f"{PREFIX}/")
        return is_file and bool(self._keys.external) and is_shown(self._keys.external, shown)

    async def _on_health(self, request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _on_metrics(self, request: web.Request) -> web.Response:
        assert self._metrics is not None
        return web.Response(text=self._metrics.text(), headers={"Content-Type": self._metrics.content_type})

    async def _on_call(
        self, kind: Any, call: Callable[..., Awaitable[Any]], request: web.Request
    ) -> web.Response:
        """A request of the trainer; 204 for an answer that is not there yet."""
        try:
            reply = await call(msgspec.msgpack.decode(await request.read(), type=kind), POLL_SECONDS)
        except (msgspec.ValidationError, msgspec.DecodeError, AsyncrlError) as error:
            return _refusal(error)
        if not reply:
            return web.Response(status=204)
        # Not in the loop, which reads streams meanwhile: a batch has millions of tokens.
        body = await asyncio.to_thread(encode_take, reply) if isinstance(reply, TakeReply) else b""
        return web.Response(body=body, content_type="application/msgpack")

    async def _on_servers(self, request: web.Request) -> web.Response:
        """For people, not for the trainer: JSON {"action", "url"} -> the servers."""
        assert self._servers is not None
        try:
            body = await request.json()
            return web.json_response(self._servers(str(body["action"]), str(body["url"])))
        except (ValueError, KeyError, TypeError, AsyncrlError) as error:
            return _refusal(error)


def _refusal(error: Exception) -> web.Response:
    return web.Response(status=409, text=f"{type(error).__name__}: {error}")
