"""One process of a run on a node of a Ray cluster: what runs inside its Ray actor.

Starts the very command that the local launcher starts, keeps its log on the node, and ends it. The process
dies with the actor, and the actor with its node or with the run.
"""

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import ray
import ray.util

from asyncrl.cache import cache_folder
from asyncrl.files.fetch import fetch_alone
from asyncrl.launch.process import ChildProcess
from asyncrl.machine import has_gpu
from asyncrl.ports import free_ports

POLL_SECONDS = 0.1
"""Between two looks at the log."""
FOLLOW_SECONDS = 10.0
"""Longest time that a caller of `follow` waits for nothing."""
CHUNK_BYTES = 2**20


class NodeProcess:
    """Wrapped by `ray.remote` in ray_cluster.py. Its methods run on one event loop."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._folder = Path(tempfile.mkdtemp(prefix="asyncrl-node-"))
        self._log = self._folder / "log"
        self._process: ChildProcess | None = None

    async def describe(self) -> tuple[str, int, bool]:
        """The node's address, a port that is free there, and whether it has a GPU that torch can use."""
        return ray.util.get_node_ip_address(), free_ports(1)[0], has_gpu()

    async def node(self) -> str:
        """Ray's id of it."""
        return str(ray.get_runtime_context().get_node_id())

    async def fetch_model(self, url: str, name: str, token: str) -> str:
        """The folder on this node, called `name`, that holds what is at `url`. Raises FetchFailed."""
        return str(await asyncio.to_thread(fetch_alone, url, cache_folder("models") / name, token=token))

    async def start(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        """Starts it; what it writes from now on follows at offset 0."""
        self._log.unlink(missing_ok=True)
        self._log.touch()
        self._process = ChildProcess(self._name, arguments, environment=environment, log_path=self._log)
        await self._process.start()

    async def follow(self, offset: int) -> tuple[bytes, int | None]:
        """What the log holds from `offset` on, as soon as there is something; the exit code once it has ended
        and nothing is left to read."""
        assert self._process is not None, f"{self._name} was not started"
        deadline = asyncio.get_running_loop().time() + FOLLOW_SECONDS
        while True:
            # Before the log is read: what is written until the end is then read for certain.
            code = self._process.returncode()
            with self._log.open("rb") as log:
                log.seek(offset)
                chunk = log.read(CHUNK_BYTES)
            if chunk or code is not None:
                return chunk, None if chunk else code
            if asyncio.get_running_loop().time() > deadline:
                return b"", None
            await asyncio.sleep(POLL_SECONDS)

    async def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    async def stop(self, grace_seconds: float) -> None:
        if self._process is not None:
            await self._process.stop(grace_seconds=grace_seconds)
