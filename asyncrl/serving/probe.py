"""Liveness of one rollout server: whether it works while it has requests, and what it holds after one broke.

A server that hangs breaks no stream: while it serves, its signs of life are watched (serving/heartbeat.py).
"""

import asyncio
import contextlib

import aiohttp

from asyncrl.serving.lifecycle import ServerLifecycle
from asyncrl.serving.server import ServerState
from asyncrl.serving.sglang import health
from asyncrl.serving.weight_owner import WeightOwner


class Probe:
    def __init__(
        self,
        lifecycle: ServerLifecycle,
        *,
        session: aiohttp.ClientSession,
        weight_owner: WeightOwner,
        silence_seconds: float,
    ) -> None:
        """A server with requests is silent when nothing comes from it for `silence_seconds`."""
        self._lifecycle = lifecycle
        self._server = lifecycle.server
        self._session = session
        self._weight_owner = weight_owner
        self._silence_seconds = silence_seconds

    async def guard(self) -> None:
        """Watches a serving server until its state changes."""
        while not self._lifecycle.changed.is_set():
            if await self._has_fallen_silent():
                self._lifecycle.fail(self._silence())

    async def question(self) -> None:
        """Asks a server whose stream broke which weights it holds."""
        server = self._server
        label = await health.weight_version(self._session, server.url)
        if server.state is not ServerState.SUSPECT:
            return
        if label is None:
            self._lifecycle.fail(server.reason)
        elif label != str(server.version) and not self._weight_owner.is_handed(server.url):
            why = f"it holds weight version {label}, not {server.version}"
            self._lifecycle.verify_again(why)
            # A request that waits there would begin on keys and values of those weights, under its own salt.
            server.heartbeat.cut_streams(why)
        else:
            self._lifecycle.is_cleared()

    async def cut_silent_streams(self) -> None:
        """Cuts silent streams of a server that leaves, such as an evaluation's; they resume elsewhere."""
        while True:
            # It may be told to leave twice.
            self._lifecycle.changed.clear()
            if await self._has_fallen_silent():
                self._server.heartbeat.cut_streams(self._silence())
                self._server.heartbeat.beat()

    async def _has_fallen_silent(self) -> bool:
        """Looks once, when there may be something to see. Half-way into a silence the scheduler is asked: an
        answer is a sign of life. Its front end alone is none, for it may outlive the scheduler."""
        server, limit = self._server, self._silence_seconds
        silence = server.heartbeat.silence_seconds() if server.num_running else 0.0
        patience = 0.5 * limit - silence
        # A wait shorter than the clock resolves would end where it began.
        if patience > 1e-3 * limit:
            await self._change_within(patience)
        elif silence >= limit:
            return True
        elif await health.answers(self._session, server.url, timeout_seconds=limit - silence):
            server.heartbeat.beat()
        else:
            # One that refuses does so at once.
            await self._change_within(0.05 * limit)
        return False

    def _silence(self) -> str:
        silence = self._server.heartbeat.silence_seconds()
        return f"{self._server.url} streamed nothing for {silence:.0f} s and does not answer"

    async def _change_within(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._lifecycle.changed.wait()
