"""A process of a run on a node of a Ray cluster: inside its Ray actor (`NodeProcess`), and as the launcher
sees it (`RayProcess`, the interface of `ChildProcess`).

The actor starts the very command that the local launcher starts. The process dies with the actor, and the
actor with its node or with the run. Its log is copied into the run folder while it runs, so that its last
words are there when its node is not.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import ray
import ray.util
from ray.exceptions import RayActorError, RayError, RayTaskError

from asyncrl.launch.site.site import ChildProcess, fetch_model, fetch_run, last_lines, node_run_folder
from asyncrl.system.machine import has_gpu
from asyncrl.system.network import free_ports
from asyncrl.wire.file_service import FileServer

LOST_CODE = -signal.SIGKILL
"""Exit code assumed for a process whose node is gone: nothing is known against its recipe."""
LOSS_SECONDS = 10.0
"""From the loss of a node to its report, where the node's connections break; Ray's heartbeat is slower."""

Fetched = Callable[[Sequence[str]], Awaitable[list[str]]]
"""Given a command line: that with folders which are on the actor's node."""


class RayProcess:
    """Start it again in the same place, unless `why_lost` says that the place is gone."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        actor: Any,
        address: str,
        environment: Mapping[str, str],
        log_path: Path,
        fetched: Fetched,
    ) -> None:
        """`actor` is a handle of a `NodeProcess` on the node at `address`."""
        self.name = name
        self.log_path = log_path
        self.why_lost = ""
        self.loss_seconds = LOSS_SECONDS
        self._arguments = list(arguments)
        self._environment = {"PYTHONSAFEPATH": "1", **environment}
        self._actor = actor
        self._address = address
        self._fetched = fetched
        self._code: int | None = None
        self._ended = asyncio.Event()
        self._following: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Raises ServerError when its files cannot be fetched to its node. A node that is lost is an end."""
        self._code = None
        self._ended.clear()
        try:
            arguments = await self._fetched(self._arguments)
            await self._actor.start.remote(arguments, self._environment)
        except RayTaskError:
            raise
        except RayError as error:
            self._lose(error)
        self._following = asyncio.create_task(self._follow(), name=f"log of {self.name}")

    def returncode(self) -> int | None:
        return self._code

    def is_running(self) -> bool:
        return self._following is not None and self._code is None

    def local_pid(self) -> int | None:
        """None: its node knows it, not this machine."""
        return None

    async def wait(self) -> int:
        await self._ended.wait()
        assert self._code is not None
        return self._code

    def kill(self) -> None:
        if self.is_running():
            # Nobody waits for the answer: its end is seen in its log.
            self._actor.kill.remote()

    async def stop(self, *, grace_seconds: float) -> None:
        if self._following is None:
            return
        if self.is_running():
            with contextlib.suppress(RayError):
                await self._actor.stop.remote(grace_seconds)
            await self._ended.wait()
        await self._following

    def last_lines(self, num_lines: int = 15) -> str:
        return last_lines(self.log_path, num_lines)

    async def _follow(self) -> None:
        """Copies its log until its end."""
        offset = 0
        try:
            while self._code is None:
                chunk, code = await self._actor.follow.remote(offset)
                offset += len(chunk)
                if chunk:
                    await asyncio.to_thread(self._append, chunk)
                if code is not None:
                    self._end(code)
        except RayError as error:
            # Whatever Ray calls it, such as its memory monitor's kill: nothing would wait for another end.
            self._actor.kill.remote()
            self._lose(error)
        except OSError as error:
            # The disk of the run folder; its other files say so too.
            self._actor.kill.remote()
            self._end_as_lost(f"its log cannot be written: {error.strerror}")

    def _append(self, chunk: bytes) -> None:
        with self.log_path.open("ab") as log:
            log.write(chunk)

    def _lose(self, error: RayError) -> None:
        why = f"its node {self._address} was lost"
        if not isinstance(error, RayActorError):
            said = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
            why = f"Ray ended it on {self._address}: {said}"
        self._end_as_lost(why)

    def _end_as_lost(self, why: str) -> None:
        self.why_lost = why
        self._end(LOST_CODE)

    def _end(self, code: int) -> None:
        self._code = code
        self._ended.set()


POLL_SECONDS = 0.1
"""Pause between two looks at the log."""
FOLLOW_SECONDS = 10.0
"""Longest time that a caller of `follow` waits for nothing."""
CHUNK_BYTES = 2**20
GLOO = "GLOO_SOCKET_IFNAME"


class NodeFacts(NamedTuple):
    """Facts about the node that a process is on."""

    node: str
    """Ray's id of it."""
    address: str
    port: int
    """Free there."""
    has_gpu: bool
    """One that torch can use."""


class NodeProcess:
    """Wrapped by `ray.remote` in ray_cluster.py. Its methods run on one event loop."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._folder = Path(tempfile.mkdtemp(prefix="asyncrl-node-"))
        self._log = self._folder / "log"
        self._process: ChildProcess | None = None
        self._files: FileServer | None = None
        self._files_url = ""
        self._run_folder: Path | None = None

    async def describe(self) -> NodeFacts:
        node = str(ray.get_runtime_context().get_node_id())
        return NodeFacts(node, ray.util.get_node_ip_address(), free_ports(1)[0], has_gpu())

    async def fetch_model(self, controller: str, token: str) -> str:
        """The base model's folder on this node. Raises FetchFailed."""
        return str(await asyncio.to_thread(fetch_model, controller, token=token))

    async def fetch_run(self, controller: str, name: str, token: str) -> None:
        """Makes the run folder called `name` what a trainer on this node begins with. Raises FetchFailed."""
        await asyncio.to_thread(fetch_run, controller, name, token=token)

    async def hand_out_run(self, name: str, keys: Sequence[str]) -> tuple[str, str]:
        """The run folder called `name`, and a URL where requests with one of `keys` get its publications and
        checkpoints, until `close`: they outlive a trainer that dies."""
        self._run_folder = node_run_folder(name)
        if self._files is None:
            self._files = FileServer(self._run_folder, keys=keys, host=ray.util.get_node_ip_address())
            self._files_url = await self._files.start()
        return str(self._run_folder), self._files_url

    async def start(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        """Starts it; what it writes from now on follows at offset 0."""
        # One that was out of reach for a while, and counts as lost, may still hold its GPU.
        await self.stop(0.0)
        self._log.unlink(missing_ok=True)
        self._log.touch()
        environment = {**_gloo_interface(), **environment}
        self._process = ChildProcess(self._name, arguments, environment=environment, log_path=self._log)
        await self._process.start()

    async def follow(self, offset: int) -> tuple[bytes, int | None]:
        """The log from `offset` on, once there is something; the exit code once nothing is left to read."""
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

    async def close(self) -> None:
        """Ends what still runs and leaves nothing on the node but fetched models."""
        await self.stop(0.0)
        if self._files is not None:
            await self._files.close()
        for folder in filter(None, (self._folder, self._run_folder)):
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


def _gloo_interface() -> dict[str, str]:
    """The network by which Ray reaches this node. gloo else takes that of the machine's name, which on Debian
    is often 127.0.1.1."""
    if GLOO in os.environ:
        return {}
    address = ray.util.get_node_ip_address()
    interfaces = psutil.net_if_addrs().items()
    found = [name for name, held in interfaces if address in [one.address for one in held]]
    return {GLOO: found[0]} if found else {}
