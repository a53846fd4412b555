"""Membership of a fleet: which servers are in it, how they come, fail and go."""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from asyncrl.errors import ServerError
from asyncrl.loops import Waits, end_tasks
from asyncrl.records import PolicyVersion
from asyncrl.serving.join import FleetSettings, Join
from asyncrl.serving.publication import WeightOwner
from asyncrl.serving.server import Server, ServerLifecycle, ServerState
from asyncrl.serving.server_process import ProcessOwner, ServerProcess
from asyncrl.serving.sglang import health

log = logging.getLogger(__name__)


@dataclass
class Probe:
    """Watches the signs of life of a serving server (`Heartbeat`): one that hangs breaks no stream."""

    lifecycle: ServerLifecycle
    session: aiohttp.ClientSession
    weight_owner: WeightOwner
    silence_seconds: float
    """A server with requests is silent when nothing comes from it for longer."""

    async def guard(self) -> None:
        """Watches a serving server until its state changes."""
        while not self.lifecycle.changed.is_set():
            if await self._has_fallen_silent():
                self.lifecycle.fail(self._silence())

    async def question(self) -> None:
        """Asks a server whose stream broke which weights it holds."""
        server = self.lifecycle.server
        label = await health.weight_version(self.session, server.url)
        if server.state is not ServerState.SUSPECT:
            return
        if label is None:
            self.lifecycle.fail(server.reason)
        elif label != str(server.version) and not self.weight_owner.is_handed(server.url):
            why = f"it holds weight version {label}, not {server.version}"
            self.lifecycle.verify_again(why)
            # A request that waits there would begin on keys and values of those weights, under its own salt.
            server.heartbeat.cut_streams(why)
        else:
            self.lifecycle.is_cleared()

    async def cut_silent_streams(self) -> None:
        """Cuts silent streams of a server that leaves, such as an evaluation's; they resume elsewhere."""
        while True:
            # It may be told to leave twice.
            self.lifecycle.changed.clear()
            if await self._has_fallen_silent():
                self.lifecycle.server.heartbeat.cut_streams(self._silence())
                self.lifecycle.server.heartbeat.beat()

    async def _has_fallen_silent(self) -> bool:
        """Looks once, when there may be something to see. Half-way into a silence the scheduler is asked: an
        answer is a sign of life. Its front end alone is none, for it may outlive the scheduler."""
        server, limit = self.lifecycle.server, self.silence_seconds
        silence = server.heartbeat.silence_seconds() if server.num_running else 0.0
        patience = 0.5 * limit - silence
        # A wait shorter than the clock resolves would end where it began.
        if patience > 1e-3 * limit:
            await self._change_within(patience)
        elif silence >= limit:
            return True
        elif await health.answers(self.session, server.url, timeout_seconds=limit - silence):
            server.heartbeat.beat()
        else:
            # One that refuses does so at once.
            await self._change_within(0.05 * limit)
        return False

    def _silence(self) -> str:
        silence = self.lifecycle.server.heartbeat.silence_seconds()
        return f"{self.lifecycle.server.url} streamed nothing for {silence:.0f} s and does not answer"

    async def _change_within(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.lifecycle.changed.wait()


@dataclass
class ServerLoop:
    """Runs from `start` until the server has left and its process has ended."""

    lifecycle: ServerLifecycle
    join: Join
    probe: Probe
    process: ServerProcess
    waits: Waits
    predecessor: "ServerLoop | None" = None
    """The loop of an earlier life of the same URL, which ends first; its process is then started again."""
    _task: "asyncio.Task[None] | None" = None

    def start(self) -> None:
        """May be called again."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"server {self.lifecycle.server.url}")

    async def close(self) -> None:
        """Ends the loop, not the server."""
        if self.predecessor is not None:
            await self.predecessor.close()
        if self._task is not None:
            await end_tasks(self._task)

    def holds_memory(self) -> bool:
        """Whether the server's process may hold weights or cache."""
        server = self.lifecycle.server
        if server.is_leaving():
            return self._task is not None and not self.process.has_ended
        return server.state is not ServerState.DEAD and not server.is_asleep

    async def _run(self) -> None:
        lifecycle, server = self.lifecycle, self.lifecycle.server
        if self.predecessor is not None:
            await self._wait_for(self.predecessor)
        while not server.is_leaving():
            lifecycle.changed.clear()
            match server.state:
                case ServerState.STALE:
                    await self.join.run()
                case ServerState.SERVING:
                    await self.probe.guard()
                case ServerState.SUSPECT:
                    await self.probe.question()
                case ServerState.RESTARTING:
                    await self.process.restart()
                case ServerState.SLEEPING if not server.is_asleep:
                    await self.process.fall_asleep()
                case _:
                    # Not a wait that is listed: nothing is owed to a server that was given up.
                    await lifecycle.changed.wait()
        await self._end_process()

    async def _wait_for(self, predecessor: "ServerLoop") -> None:
        server = self.lifecycle.server
        predecessor.lifecycle.leave()
        if predecessor._task is not None:
            with self.waits.waiting(f"server {server.url}", "the end of its process, to restart it"):
                await asyncio.wait([predecessor._task])
        self.predecessor = None
        if server.state is ServerState.STALE:
            self.lifecycle.did_not_join(server.reason)

    async def _end_process(self) -> None:
        """Once nothing needs it; silent streams are not waited for."""
        name = f"silence of {self.lifecycle.server.url}"
        cutting = asyncio.create_task(self.probe.cut_silent_streams(), name=name)
        try:
            await self.process.until_unused()
        finally:
            await end_tasks(cutting)
        await self.process.end()


class Membership:
    def __init__(
        self,
        urls: Sequence[str],
        settings: FleetSettings,
        *,
        session: aiohttp.ClientSession,
        waits: Waits,
        weight_owner: WeightOwner,
        processes: ProcessOwner,
    ) -> None:
        self._settings = settings
        self._session = session
        self._waits = waits
        self._weight_owner = weight_owner
        self._processes = processes
        self.servers = {url: Server(url) for url in urls}
        self._former: list[Server] = []
        """Servers that are no longer in `servers`: what they did stays counted."""
        self.loops = {url: self._make_loop(server) for url, server in self.servers.items()}
        """By URL, of removed servers too, whose processes may still have to end."""

    def _make_loop(self, server: Server, *, predecessor: ServerLoop | None = None) -> ServerLoop:
        lifecycle = ServerLifecycle(server, self._waits)
        shared = (lifecycle, self._session, self._waits, self._weight_owner)
        return ServerLoop(
            lifecycle,
            Join(*shared, self._settings),
            Probe(lifecycle, self._session, self._weight_owner, self._settings.silence_seconds),
            ServerProcess(*shared, self._processes, self._move),
            self._waits,
            predecessor,
        )

    def serving(self) -> list[Server]:
        return [server for server in self.servers.values() if server.is_serving()]

    def all(self) -> list[Server]:
        """Also those that left."""
        return [*self.servers.values(), *self._former]

    def has_hope(self) -> bool:
        """False when every server was given up."""
        return any(server.state is not ServerState.DEAD for server in self.servers.values())

    def reasons(self) -> str:
        """Why each server is as it is."""
        return "; ".join(server.reason for server in self.servers.values())

    def has_late_joiner(self) -> bool:
        """Whether a server that was too late before is on its way: steps may be shorter than an install, and
        it would never arrive."""
        return any(self.loops[url].join.is_late() for url in self.servers)

    def lifecycle(self, server: Server) -> ServerLifecycle:
        """The states of a server that is in `servers`."""
        return self.loops[server.url].lifecycle

    def start(self) -> None:
        """Every server joins as soon as it is ready and the first publication is known."""
        for loop in self.loops.values():
            loop.lifecycle.start()
            loop.start()

    def verify_again(self, why: str) -> None:
        """Every server joins with the latest publication, as a matter of routine."""
        for loop in self.loops.values():
            loop.lifecycle.verify_again(why, is_routine=True)
            loop.start()

    def serve_fixed(self, version: PolicyVersion) -> None:
        """Without a trainer: every server serves the weights it was started with, as `version`."""
        for loop in self.loops.values():
            loop.lifecycle.serve_fixed(version)
            loop.start()

    def fail(self, server: Server, why: str) -> None:
        """Takes a server out of service and restarts it in the background."""
        if server.is_serving():
            self.lifecycle(server).fail(why)

    async def suspect(self, server: Server, error: ServerError) -> None:
        """A stream of this server broke. Returns once it is known whether the server serves on."""
        if server.is_serving():
            await self.lifecycle(server).suspect(error)

    def restart_stuck(self, why: str) -> None:
        """Restarts the serving servers that hold requests: one of them keeps the run waiting."""
        for server in self.serving():
            if server.num_running:
                self.fail(server, why)

    def add(self, url: str) -> None:
        """A server that joins once its weights are verified; one that was given up gets another chance.

        Raises ServerError when it is there, or is no URL of a server.
        """
        there = self.servers.get(url)
        if there is not None and there.is_staying():
            raise ServerError(f"{url} is there already: {there.state.value}.")
        if not url.startswith(("http://", "https://")) or url.endswith("/"):
            raise ServerError(f'"{url}" is not the URL of a server, such as http://10.0.0.7:30000.')
        before = self.loops.get(url)
        # Its joins are counted on: what an external server cached in its former life is still there.
        num_joins = 0 if before is None else before.lifecycle.server.num_joins
        server = Server(url, ServerState.STALE, reason="added", num_joins=num_joins)
        if there is not None:
            self._former.append(there)
        self.servers[url] = server
        self.loops[url] = self._make_loop(server, predecessor=before)
        self.loops[url].lifecycle.announce_addition()
        self.loops[url].start()

    def note_restart(self, url: str) -> None:
        """The process of `url` starts again."""
        if url in self.servers:
            self.servers[url].num_process_restarts += 1

    def remove(self, url: str) -> None:
        """Drains a server: its streams resume elsewhere, then it is forgotten and its process ends.

        Raises ServerError when it is unknown or the last one that is not given up.
        """
        server = self.servers.get(url)
        if server is None:
            raise ServerError(f"There is no server {url}. Known: {', '.join(self.servers)}.")
        if not any(other.is_staying() for other in self.servers.values() if other is not server):
            raise ServerError(f"{url} is the last rollout server. Add another one first.")
        log.warning("server %s was removed: %d requests resume elsewhere", url, server.num_running)
        self.lifecycle(server).leave()
        self.forget_if_drained(server)

    def forget_if_drained(self, server: Server) -> None:
        """A server that leaves is gone once nothing streams from it; its loop ends the process."""
        is_here = self.servers.get(server.url) is server
        if is_here and server.is_leaving() and not server.num_running:
            self._former.append(self.servers.pop(server.url))

    def _move(self, url: str, now: str) -> None:
        """A server that came up on another node is another one from now on. Raises ServerError."""
        lost = self.servers.get(url)
        if lost is None:
            return
        self.add(now)
        # It was taken out of service by its death: what streamed from it has broken off.
        self.lifecycle(lost).leave()
        self.forget_if_drained(lost)

    def change_and_list(self, action: str, url: str) -> list[dict[str, Any]]:
        """ "add" or "remove" `url`, or only "list"; what is known of each server. Raises ServerError."""
        if action == "add":
            self.add(url)
        elif action == "remove":
            self.remove(url)
        elif action != "list":
            raise ServerError(f'The action is "{action}", expected add, remove or list.')
        return [
            {
                "url": server.url,
                "state": server.state.value,
                "version": server.version,
                "num_running": server.num_running,
                "held_tokens": server.held_tokens,
                "expected_tokens": server.expected_tokens,
                "cache_tokens": None if server.capacity is None else server.capacity.cache_tokens,
                "reason": server.reason,
            }
            for server in self.servers.values()
        ]

    async def close(self) -> None:
        """Ends the loops, not the servers."""
        await asyncio.gather(*(loop.close() for loop in self.loops.values()))


class Utilization:
    """Sums over all servers, also those that left: they never fall."""

    def __init__(self, members: Membership) -> None:
        self._members = members

    def busy_seconds(self) -> float:
        """Seconds, summed over servers, in which at least one request was running."""
        return sum(server.busy_so_far() for server in self._members.all())

    def stream_seconds(self) -> tuple[float, float]:
        """Sums over servers: requests running times seconds, and their squares times seconds."""
        servers = self._members.all()
        for server in servers:
            server.count_streams()
        return sum(s.stream_seconds for s in servers), sum(s.squared_stream_seconds for s in servers)

    def cache_shares(self) -> tuple[float, float]:
        """Shares of the caches whose size is known: (held by requests now, expected to be held)."""
        known = [
            (s, s.capacity.cache_tokens) for s in self._members.servers.values() if s.capacity is not None
        ]
        room = max(1, sum(tokens for _, tokens in known))
        held, expected = sum(s.held_tokens for s, _ in known), sum(s.expected_tokens for s, _ in known)
        return held / room, expected / room

    def num_retractions(self) -> int:
        return sum(server.num_retractions for server in self._members.all())
