"""The process of one rollout server: its restarts, its sleep on shared GPUs, and its end."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import aiohttp

from asyncrl.errors import ServerError
from asyncrl.loops import Waits
from asyncrl.serving.publication import WeightOwner
from asyncrl.serving.server import ServerLifecycle, ServerState
from asyncrl.serving.sglang import control

log = logging.getLogger(__name__)

MAX_RESTARTS = 5
"""Restarts of one server in a row, without a publish in between that it took, before the run gives it up."""


class ProcessOwner(Protocol):
    """Starts and ends the processes of servers, which are named by their URL."""

    async def restart_server(self, url: str) -> str | None:
        """Returns when the server is ready again; one that is not ours is waited for. Raises ServerError.

        Another URL, where there is one, is that of the server on another node.
        """
        ...

    async def end_server(self, url: str) -> None:
        """Ends the process of a server that was removed; one that is not ours is left alone."""
        ...


@dataclass
class ServerProcess:
    lifecycle: ServerLifecycle
    session: aiohttp.ClientSession
    waits: Waits
    weight_owner: WeightOwner
    processes: ProcessOwner
    on_moved: Callable[[str, str], None]
    """Told when the server came up on another node: its URL, and its URL there."""
    has_ended: bool = False
    """The server left, and so has its process."""

    async def restart(self) -> None:
        """One attempt, once there is memory for it; given up after MAX_RESTARTS."""
        server = self.lifecycle.server
        await self.waits.wait_until(
            lambda: self.weight_owner.may_start_process() or server.state is not ServerState.RESTARTING,
            owner=f"server {server.url}",
            blocker="the trainer, which has its GPUs",
        )
        if server.state is not ServerState.RESTARTING:
            return
        if server.num_restarts == MAX_RESTARTS:
            log.error("server %s is given up after %d restarts: %s", server.url, MAX_RESTARTS, server.reason)
            return self.lifecycle.give_up()
        server.num_restarts += 1
        try:
            with self.waits.waiting(f"server {server.url}", f"restart {server.num_restarts}"):
                now = await self.processes.restart_server(server.url)
                if now is not None and now != server.url:
                    self.on_moved(server.url, now)
                server.is_asleep = False
        except ServerError as error:
            log.warning("restart %d of %s failed: %s", server.num_restarts, server.url, error)
            if server.state is ServerState.RESTARTING:
                server.reason = str(error)
            return
        if server.state is ServerState.RESTARTING:
            self.lifecycle.restarted()

    async def fall_asleep(self) -> None:
        """Gives its memory to the trainer; a process that refuses is restarted."""
        server = self.lifecycle.server
        try:
            with self.waits.waiting(f"server {server.url}", "the end of its streams, to fall asleep"):
                await control.sleep(self.session, server.url)
        except ServerError as error:
            log.warning("server %s does not fall asleep: %s", server.url, error)
            return self.lifecycle.did_not_fall_asleep(str(error))
        server.is_asleep = True
        self.waits.notify()

    async def until_unused(self) -> None:
        """Waits until nothing streams from it and the trainer writes nothing to it."""
        server = self.lifecycle.server
        await self.waits.wait_until(
            lambda: not server.num_running and not self.weight_owner.is_handed(server.url),
            owner=f"server {server.url}",
            blocker="its streams and the trainer's publication, before it ends",
        )

    async def end(self) -> None:
        """Its server has left."""
        await self.processes.end_server(self.lifecycle.server.url)
        self.has_ended = True
        self.waits.notify()
