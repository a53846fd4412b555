"""The rollout servers as one: who serves, with which version, and who gets the next request.

A server serves only after its weights were verified equal to the trainer's latest publication. Weights travel
on one wire at a time: the trainer owns it from the reply to a take until its next take, the fleet in between,
so two publications never mix on a server. Failing servers leave at once, are restarted and join again as
stale.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from enum import StrEnum

import aiohttp

from asyncrl.errors import ServerError
from asyncrl.serving.client import is_ready
from asyncrl.serving.publication import Publication, install
from asyncrl.signal import Signal
from asyncrl.types import PolicyVersion, PublishOutcome

log = logging.getLogger(__name__)

MAX_RESTARTS = 5
"""Restarts of one server in a run before the run gives it up."""


class ServerState(StrEnum):
    STALE = "stale"
    """Runs or starts, but its weights are not verified to be the latest."""
    SERVING = "serving"
    DEAD = "dead"
    """Given up."""


@dataclass(slots=True)
class Server:
    url: str
    state: ServerState = ServerState.STALE
    version: PolicyVersion | None = None
    num_running: int = 0
    busy_seconds: float = 0.0
    busy_since_seconds: float = 0.0
    num_restarts: int = 0
    reason: str = "starting"
    """Why it does not serve."""


class Fleet:
    """`restart` brings the process behind a URL up again (or waits for an external one) until it is ready."""

    def __init__(
        self,
        urls: list[str],
        *,
        session: aiohttp.ClientSession,
        signal: Signal,
        max_running_requests: int,
        restart: Callable[[str], Awaitable[None]],
    ) -> None:
        self.servers = {url: Server(url) for url in urls}
        self.session = session
        self.max_running_requests = max_running_requests
        self._signal = signal
        self._restart = restart
        self._publication: Publication | None = None
        self._lineage = 0
        self.trainer_owns_wire = False
        self._install_lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def serving(self) -> list[Server]:
        return [server for server in self.servers.values() if server.state is ServerState.SERVING]

    def num_running(self) -> int:
        return sum(server.num_running for server in self.servers.values())

    def pick(self, num_requests: int) -> Server | None:
        """The least loaded serving server with room for `num_requests` more, or None."""
        open_servers = [
            server
            for server in self.serving()
            if server.num_running + num_requests <= max(self.max_running_requests, num_requests)
        ]
        return min(open_servers, key=lambda server: server.num_running, default=None)

    def salt(self, server: Server) -> str:
        """Keeps the prefix caches of versions apart, also when a trainer went back and counts up again."""
        return f"{self._lineage}-v{server.version}"

    def busy_seconds(self) -> float:
        """Seconds, summed over servers, in which at least one request was running."""
        now = time.monotonic()
        return sum(
            s.busy_seconds + (now - s.busy_since_seconds if s.num_running else 0.0)
            for s in self.servers.values()
        )

    def acquire(self, server: Server, num_requests: int) -> None:
        if server.num_running == 0:
            server.busy_since_seconds = time.monotonic()
        server.num_running += num_requests

    def release(self, server: Server, num_requests: int = 1) -> None:
        server.num_running -= num_requests
        if server.num_running == 0:
            server.busy_seconds += time.monotonic() - server.busy_since_seconds
        self._signal.notify()

    async def announce(self, publication: Publication, outcomes: Mapping[str, PublishOutcome]) -> None:
        """The trainer published: servers that took it serve on, the others leave with the reason."""
        if self._publication is not None and publication.version < self._publication.version:
            self._lineage += 1
        self._publication = publication
        self.trainer_owns_wire = False
        for url, outcome in outcomes.items():
            server = self.servers.get(url)
            if server is None or server.state is not ServerState.SERVING:
                continue
            if outcome.is_installed:
                server.version = publication.version
            else:
                self.fail(server, outcome.detail)
        for server in self.serving():
            # A server the trainer did not reach must not serve an older version than the announced one.
            if server.version != publication.version:
                server.state, server.reason = ServerState.STALE, "missed a publish"
                self._spawn(self._join(server))
        self._signal.notify()

    async def hand_wire_to_trainer(self) -> list[str]:
        """URLs to publish the next version to; no install of ours runs until the next `announce`."""
        async with self._install_lock:
            self.trainer_owns_wire = True
            return [server.url for server in self.serving()]

    def start(self) -> None:
        """Every server joins as soon as it is ready and the first publication is known."""
        for server in self.servers.values():
            self._spawn(self._join(server))

    def serve_fixed(self, version: PolicyVersion) -> None:
        """Without a trainer: every server serves the weights it was started with, as `version`."""
        for server in self.servers.values():
            server.version, server.state, server.reason = version, ServerState.SERVING, ""

    def fail(self, server: Server, why: str) -> None:
        """Takes a server out of service and restarts it in the background."""
        if server.state is not ServerState.SERVING:
            return
        server.state, server.reason = ServerState.STALE, why
        log.warning("server %s leaves: %s", server.url, why)
        self._spawn(self._restart_and_join(server))
        self._signal.notify()

    async def suspect(self, server: Server, why: str) -> None:
        """A stream of this server broke: it fails unless it still answers that it is ready."""
        if server.state is ServerState.SERVING and not await is_ready(self.session, server.url):
            self.fail(server, why)

    def has_hope(self) -> bool:
        """False when every server was given up."""
        return any(server.state is not ServerState.DEAD for server in self.servers.values())

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _restart_and_join(self, server: Server) -> None:
        while server.num_restarts < MAX_RESTARTS:
            server.num_restarts += 1
            try:
                await self._restart(server.url)
                return await self._join(server)
            except ServerError as error:
                server.reason = str(error)
                log.warning("restart %d of %s failed: %s", server.num_restarts, server.url, error)
        server.state = ServerState.DEAD
        log.error("server %s is given up after %d restarts: %s", server.url, MAX_RESTARTS, server.reason)
        self._signal.notify()

    async def _join(self, server: Server) -> None:
        await self._signal.wait_until(
            lambda: self._publication is not None and not self.trainer_owns_wire,
            owner=f"server {server.url}",
            blocker="the trainer's publication",
        )
        async with self._install_lock:
            if self.trainer_owns_wire:
                return self._spawn(self._join(server))
            publication = self._publication
            assert publication is not None
            try:
                await install(self.session, server.url, publication)
            except ServerError as error:
                server.reason = str(error)
                log.warning("server %s does not join: %s", server.url, error)
                return self._spawn(self._restart_and_join(server))
            server.version, server.state, server.reason = publication.version, ServerState.SERVING, ""
            log.info("server %s serves version %d, digests verified", server.url, publication.version)
        self._signal.notify()
