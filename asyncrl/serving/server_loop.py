"""The loop of one rollout server: it does what the server's state asks for, one thing at a time."""

import asyncio

from asyncrl.loops.task_group import end_tasks
from asyncrl.loops.waits import Waits
from asyncrl.serving.join import Join
from asyncrl.serving.lifecycle import ServerLifecycle
from asyncrl.serving.probe import Probe
from asyncrl.serving.server import ServerState
from asyncrl.serving.server_process import ServerProcess


class ServerLoop:
    """Runs from `start` until the server has left and its process has ended."""

    def __init__(
        self,
        lifecycle: ServerLifecycle,
        join: Join,
        probe: Probe,
        process: ServerProcess,
        waits: Waits,
        predecessor: "ServerLoop | None" = None,
    ) -> None:
        """`predecessor` is the loop of an earlier life of the same URL, which ends first; its process is then
        started again."""
        self.lifecycle = lifecycle
        self.join = join
        self._probe = probe
        self._process = process
        self._waits = waits
        self._predecessor = predecessor
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """May be called again."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"server {self.lifecycle.server.url}")

    async def close(self) -> None:
        """Ends the loop, not the server."""
        if self._predecessor is not None:
            await self._predecessor.close()
        if self._task is not None:
            await end_tasks(self._task)

    def holds_memory(self) -> bool:
        """Whether the server's process may hold weights or cache."""
        server = self.lifecycle.server
        if server.is_leaving():
            return self._task is not None and not self._process.has_ended
        return server.state is not ServerState.DEAD and not server.is_asleep

    async def _run(self) -> None:
        lifecycle, server = self.lifecycle, self.lifecycle.server
        if self._predecessor is not None:
            await self._wait_for(self._predecessor)
        while not server.is_leaving():
            lifecycle.changed.clear()
            match server.state:
                case ServerState.STALE:
                    await self.join.run()
                case ServerState.SERVING:
                    await self._probe.guard()
                case ServerState.SUSPECT:
                    await self._probe.question()
                case ServerState.RESTARTING:
                    await self._process.restart()
                case ServerState.SLEEPING if not server.is_asleep:
                    await self._process.fall_asleep()
                case _:
                    # Not a wait that is listed: nothing is owed to a server that was given up.
                    await lifecycle.changed.wait()
        await self._end_process()

    async def _wait_for(self, predecessor: "ServerLoop") -> None:
        server = self.lifecycle.server
        predecessor.lifecycle.leave()
        if predecessor._task is not None:
            with self._waits.waiting(f"server {server.url}", "the end of its process, to restart it"):
                await asyncio.wait([predecessor._task])
        self._predecessor = None
        if server.state is ServerState.STALE:
            self.lifecycle.did_not_join(server.reason)

    async def _end_process(self) -> None:
        """Once nothing needs it; silent streams are not waited for."""
        name = f"silence of {self.lifecycle.server.url}"
        cutting = asyncio.create_task(self._probe.cut_silent_streams(), name=name)
        try:
            await self._process.until_unused()
        finally:
            await end_tasks(cutting)
        await self._process.end()
