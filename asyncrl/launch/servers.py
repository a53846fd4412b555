"""The local rollout servers of a run: where they listen, how they start, restart and stop."""

import asyncio
import itertools
import logging
import socket
from pathlib import Path

import aiohttp

from asyncrl.disk import ask_disk
from asyncrl.errors import InputError, ServerError
from asyncrl.journal.server_changes import ServerChanges
from asyncrl.launch.process import ChildProcess
from asyncrl.model.dtype import with_dtype
from asyncrl.model.folder import read_shape
from asyncrl.ports import free_ports
from asyncrl.recipe import Recipe
from asyncrl.serving import sglang
from asyncrl.serving.engine.environment import engine_arguments, engine_environment

log = logging.getLogger(__name__)

STOP_SECONDS = 2.0
_NO_CHANGES = ServerChanges()
MAX_STARTS = 4
"""Of a server that is killed while the run starts."""


class LocalServers:
    """Server processes by URL; with `serving.servers` set it owns none and only waits for them."""

    def __init__(
        self,
        recipe: Recipe,
        *,
        model_folder: Path,
        logs: Path,
        session: aiohttp.ClientSession,
        has_gpu: bool,
        num_evaluation: int = 0,
        changes: ServerChanges = _NO_CHANGES,
    ) -> None:
        """`changes` were made in earlier starts of the run: what they removed is left out."""
        self._recipe = recipe
        self._session = session
        self.processes: dict[str, ChildProcess] = {}
        self.urls = [url for url in recipe.serving.servers if url not in changes.removed]
        self.evaluation_urls: list[str] = []
        """Of those that are not for rollouts."""
        if not recipe.serving.servers:
            for index, port in _staying_ports(recipe, changes):
                self.urls.append(
                    self._add(
                        f"server {index}", port, recipe.seed + index, model_folder, logs, has_gpu=has_gpu
                    )
                )
        for index, port in enumerate(free_ports(num_evaluation)):
            name, seed = f"evaluation server {index}", recipe.seed + len(self.urls) + index
            self.evaluation_urls.append(self._add(name, port, seed, model_folder, logs, has_gpu=has_gpu))

    def _add(self, name: str, port: int, seed: int, model_folder: Path, logs: Path, *, has_gpu: bool) -> str:
        """The URL of one more process, not yet started."""
        url, recipe = _local_url(port), self._recipe
        # SGLang's own "auto" would serve a float32 checkpoint in float16.
        is_settled = recipe.model.dtype != "auto"
        model = recipe.model if is_settled else with_dtype(recipe.model, read_shape(model_folder))
        self.processes[url] = ChildProcess(
            name,
            engine_arguments(
                recipe.serving,
                model,
                has_gpu=has_gpu,
                port=port,
                model_folder=model_folder,
                stream_interval=recipe.rollout.stream_interval_tokens,
                seed=seed,
                index=len(self.processes),
            ),
            environment=engine_environment(threads=recipe.serving.threads_per_server, has_gpu=has_gpu),
            log_path=logs / f"{name.replace(' ', '-')}.log",
        )
        return url

    async def start(self) -> None:
        """Returns when all are ready. Raises ServerError with the last lines of one that ended."""
        for process in self.processes.values():
            await process.start()
        await asyncio.gather(*(self._first_start(url) for url in [*self.urls, *self.evaluation_urls]))

    async def _first_start(self, url: str) -> None:
        """A refusal is a mistake of the recipe. One that was killed is started again; so is one that neither
        ends nor answers, but once."""
        for attempt in itertools.count(1):
            try:
                return await self._wait(url)
            except ServerError:
                process = self.processes.get(url)
                code = process.returncode() if process is not None else None
                was_killed = code is not None and code < 0 and attempt < MAX_STARTS
                hangs = process is not None and process.is_running() and attempt == 1
                if not (was_killed or hangs):
                    raise
                await self._start_again(url)

    async def restart(self, url: str) -> None:
        """Brings the server at `url` up again; an external one is only waited for. Raises ServerError."""
        await self._start_again(url)
        await self._wait(url)

    async def end(self, url: str) -> None:
        """Ends the process of a server that was removed; `restart` starts it again. Leaves external ones."""
        process = self.processes.get(url)
        if process is not None and process.is_running():
            log.warning("%s ends", process.name)
            await process.stop(grace_seconds=STOP_SECONDS)

    async def _start_again(self, url: str) -> None:
        process = self.processes.get(url)
        if process is not None:
            refusal = ask_disk(process.log_path.parent)
            if refusal is not None:
                # SGLang dies of a line that it cannot print.
                raise ServerError(
                    f"{process.name} cannot write its log under {process.log_path.parent}: {refusal}. Make "
                    f"room on the disk and run the same command again: it resumes."
                )
            code = process.returncode()
            why = "it does not answer" if code is None else f"exit code was {code}"
            log.warning("%s restarts, %s", process.name, why)
            await process.stop(grace_seconds=STOP_SECONDS)
            await process.start()

    async def stop(self) -> None:
        await asyncio.gather(*(p.stop(grace_seconds=STOP_SECONDS) for p in self.processes.values()))

    async def _wait(self, url: str) -> None:
        timeout = self._recipe.serving.start_timeout_seconds
        ready = asyncio.create_task(sglang.wait_until_ready(self._session, url, timeout_seconds=timeout))
        process = self.processes.get(url)
        if process is None:
            return await ready
        ended = asyncio.create_task(process.wait())
        try:
            await asyncio.wait((ready, ended), return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                raise ServerError(
                    f"{process.name} ended with exit code {ended.result()} while it started. Its last lines "
                    f"({process.log_path}):\n{process.last_lines()}"
                )
            await ready
        finally:
            ready.cancel()
            ended.cancel()


def _staying_ports(recipe: Recipe, changes: ServerChanges) -> list[tuple[int, int]]:
    """Index and port of the local servers that were not removed; only their number tells free ports."""
    ports = list(enumerate(choose_ports(recipe)))
    if recipe.serving.first_port:
        return [(index, port) for index, port in ports if _local_url(port) not in changes.removed_local]
    return ports[: len(ports) - len(changes.removed_local)]


def _local_url(port: int) -> str:
    return f"http://127.0.0.1:{port}"


def choose_ports(recipe: Recipe) -> list[int]:
    """Ports for the local servers: the ones asked for, or free ones."""
    first, count = recipe.serving.first_port, recipe.serving.num_servers
    if first:
        return list(range(first, first + count))
    return free_ports(count)


def check_ports(recipe: Recipe) -> None:
    """Raises InputError when a port that the recipe asks for is taken."""
    if recipe.serving.first_port and not recipe.serving.servers:
        for port in choose_ports(recipe):
            _check_free(port)


def _check_free(port: int) -> None:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError as error:
            raise InputError(
                f"port {port} (serving.first_port) is taken: {error.strerror}. Set another one, or 0 for any."
            ) from None
