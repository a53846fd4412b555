"""The local rollout servers of a run: where they listen, how they start, restart and stop."""

import asyncio
import hashlib
import itertools
import json
import logging
import platform
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from asyncrl.errors import InputError, ServerError
from asyncrl.journal.starts import ServerChanges
from asyncrl.launch.site.site import Need, Place, Process, Site, server_need
from asyncrl.loops import end_tasks
from asyncrl.model.dtype import with_dtype
from asyncrl.model.folder import read_shape
from asyncrl.model.side_models import TEACHER, SideModel, opponent_process, side_processes
from asyncrl.model.supported import BITWISE_VARIABLE
from asyncrl.model.unsampled import UNSAMPLED_VARIABLE, find_unsampled
from asyncrl.recipe import Recipe
from asyncrl.serving.engine.environment import (
    cache_environment,
    engine_arguments,
    engine_environment,
    releases_graphs,
)
from asyncrl.serving.sglang import health, hooks, scores
from asyncrl.system.files import ask_disk
from asyncrl.wire.access import TOKEN_VARIABLE, Keys

log = logging.getLogger(__name__)

STOP_SECONDS = 2.0
_NO_CHANGES = ServerChanges()
_NO_SIDE_MODELS: Mapping[str, SideModel] = {}
MAX_STARTS = 4
"""Most starts of a server that is killed while the run starts."""
EXCEPTION = re.compile(r"^[\w.]*(Error|Exception)\b", re.MULTILINE)
"""The end of a traceback in a log. SGLang kills its whole tree when its scheduler raises, for which the exit
code is that of a kill from outside."""


class LocalServers:
    """Server processes by URL; with `serving.servers` set it owns none and only waits for them."""

    def __init__(
        self,
        recipe: Recipe,
        *,
        model_folder: Path,
        logs: Path,
        session: aiohttp.ClientSession,
        site: Site,
        places: Mapping[str, Place],
        num_evaluation: int = 0,
        side_models: Mapping[str, SideModel] = _NO_SIDE_MODELS,
        changes: ServerChanges = _NO_CHANGES,
        keys: Keys | None = None,
    ) -> None:
        """`changes` were made in earlier starts of the run: what they removed is left out. `places` are those
        that `site` has found for `server_needs`. `side_models` by the names of their processes. The
        processes accept requests with the token of `keys`, which learn their URLs; without `keys`, all."""
        self._recipe = recipe
        self._model_folder = model_folder
        self._logs = logs
        self._session = session
        self._unsampled = find_unsampled(model_folder, recipe.rollout.stop_tokens)
        self._keys = keys or Keys()
        self._site = site
        self._side_models = side_models
        self._on_restart: Callable[[str], None] = lambda url: None
        self.processes: dict[str, Process] = {}
        self._roles: dict[str, _Role] = {}
        self.urls = [url for url in recipe.serving.servers if url not in changes.removed]
        self.evaluation_urls: list[str] = []
        """URLs of those that are not for rollouts."""
        for index in staying_servers(recipe, changes):
            first, name = recipe.serving.first_port, f"server {index}"
            role = _Role(name, recipe.seed + index, first and first + index)
            self.urls.append(self._add(role, places[name]))
        for index in range(num_evaluation):
            name, seed = f"evaluation server {index}", recipe.seed + len(self.urls) + index
            self.evaluation_urls.append(self._add(_Role(name, seed), places[name]))
        self.side_urls: dict[str, str] = {}
        """URLs of side models, by the names of their processes."""
        for name in side_models:
            given = recipe.teacher.url if name == TEACHER else None
            self.side_urls[name] = given or self._add(_Role(name, recipe.seed), places[name])

    def _add(self, role: "_Role", place: Place) -> str:
        """The URL of one more process, not yet started."""
        recipe, port = self._recipe, role.port or place.port
        url = f"http://{place.host}:{port}"
        self._keys.add_own(url)
        folder, unsampled, model = self._model_folder, self._unsampled, recipe.model
        side = self._side_models.get(role.name)
        if side is not None:
            recipe, folder, unsampled = side.recipe, side.folder, side.unsampled
            model = recipe.model.model_copy(update={"dtype": side.dtype})
        elif model.dtype == "auto":
            # SGLang's own "auto" would serve a float32 checkpoint in float16.
            model = with_dtype(recipe, read_shape(folder))
        serving = recipe.serving
        can_sleep = recipe.placement.colocated and side is None
        self._roles[url] = role
        self.processes[url] = self._site.process(
            role.name,
            engine_arguments(
                serving,
                model,
                has_gpu=place.has_gpu,
                port=port,
                model_folder=folder,
                stream_interval=recipe.rollout.stream_interval_tokens,
                seed=role.seed,
                host=place.bind_address,
                can_sleep=can_sleep,
                returns_routes=recipe.replays_routes() and side is None,
            ),
            environment={
                **engine_environment(
                    threads=serving.threads_per_server,
                    has_gpu=place.has_gpu,
                    host=place.host,
                    releases_graphs=releases_graphs(serving, has_gpu=place.has_gpu, can_sleep=can_sleep),
                ),
                **cache_environment(),
                TOKEN_VARIABLE: self._keys.token,
                UNSAMPLED_VARIABLE: str(unsampled),
                BITWISE_VARIABLE: str(int(model.bitwise_agreement)),
            },
            log_path=self._logs / f"{role.name.replace(' ', '-')}.log",
        )
        return url

    def opponent_urls(self) -> dict[str, str]:
        """By the names of agent.opponents."""
        return {name: self.side_urls[opponent_process(name)] for name in self._recipe.agent.opponents}

    async def start(self, on_restart: Callable[[str], None] = lambda url: None) -> None:
        """Returns when all are ready; `on_restart` is told the URL of each server that is about to be started
        again, from now on. Raises ServerError with the last lines of one that ended."""
        self._on_restart = on_restart
        for process in self.processes.values():
            await process.start()
        urls = [*self.urls, *self.evaluation_urls, *self.side_urls.values()]
        await asyncio.gather(*map(self._first_start, urls))

    async def _first_start(self, url: str) -> None:
        """A refusal is a mistake of the recipe. One that was killed is started again; so is one that neither
        ends nor answers, or whose log ends with an exception, but once."""
        for attempt in itertools.count(1):
            try:
                return await self._wait(url)
            except ServerError:
                process = self.processes.get(url)
                code = process.returncode() if process is not None else None
                raised = process is not None and EXCEPTION.search(process.last_lines()) is not None
                was_killed = code is not None and code < 0 and attempt < (2 if raised else MAX_STARTS)
                hangs = process is not None and process.is_running() and attempt == 1
                if not (was_killed or hangs):
                    raise
                self._on_restart(url)
                await self._start_again(url)

    async def restart(self, url: str) -> str:
        """Brings the server at `url` up again; an external one is only waited for. Returns where it is: after
        the loss of its node at another URL. Raises ServerError."""
        process = self.processes.get(url)
        self._on_restart(url)
        if process is None or not process.why_lost:
            await self._start_again(url)
        # Which may have been noticed only when it was to start in its place.
        if process is not None and process.why_lost:
            url = await self._place_again(url, process)
        await self._wait(url)
        return url

    async def _place_again(self, url: str, process: Process) -> str:
        """The URL of its successor, which has been started. Raises ServerError."""
        role = self._roles[url]
        log.warning("%s starts on another node: %s", role.name, process.why_lost)
        try:
            side = self._side_models.get(role.name)
            recipe = self._recipe if side is None else side.recipe
            places = await self._site.place([server_need(recipe, role.name)])
        except InputError as error:
            raise ServerError(str(error)) from error
        del self.processes[url], self._roles[url]
        now = self._add(role, places[role.name])
        await self.processes[now].start()
        for urls in (self.urls, self.evaluation_urls):
            urls[:] = [now if known == url else known for known in urls]
        if role.name in self.side_urls:
            self.side_urls[role.name] = now
        return now

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
                    f"{process.name} cannot write its log under {process.log_path.parent}: {refusal}. Free "
                    f"up disk space and run the same command again: it resumes."
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
        process = self.processes.get(url)
        # An external one stays as a publish that broke off left it, also when the whole run was killed then.
        is_teacher = process is None and url == self.side_urls.get(TEACHER)
        may_be_paused = process is None and not is_teacher
        waiting = health.wait_until_ready(
            self._session, url, timeout_seconds=timeout, may_be_paused=may_be_paused
        )
        if process is None:
            await waiting
            if is_teacher:
                return await self._check_teacher(url)
            await hooks.check_hooks(
                self._session,
                url,
                unsampled=self._unsampled,
                is_bitwise=self._recipe.model.bitwise_agreement,
                top_k=self._recipe.rollout.top_k,
                returns_routes=self._recipe.replays_routes(),
            )
            return
        ready = asyncio.create_task(waiting)
        ended = asyncio.create_task(process.wait())
        try:
            await asyncio.wait((ready, ended), return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                how = process.why_lost or f"exit code {ended.result()}"
                raise ServerError(
                    f"{process.name} ended while it started: {how}. Its last lines ({process.log_path}):\n"
                    f"{process.last_lines()}"
                )
            await ready
            if self._keys.token and await health.is_open(url):
                raise ServerError(
                    f"{process.name} answers without the run's token: SGLang has not loaded asyncrl's "
                    f"plugin. Install asyncrl where SGLang is installed (`make setup`), and leave "
                    f"SGLANG_PLUGINS unset."
                )
        finally:
            await end_tasks(ready, ended)

    async def _check_teacher(self, url: str) -> None:
        """Raises ServerError where an external teacher would give log-probs of another distribution."""
        temperature = self._recipe.rollout.temperature
        if temperature != 1.0 and not await scores.knows_temperatures(self._session, url):
            raise ServerError(
                f"teacher.url is {url}, which has no asyncrl plugin: its log-probs of a text are at "
                f"temperature 1, but rollout.temperature is {temperature:g}. Install asyncrl where that "
                "server runs, set rollout.temperature to 1, or remove teacher.url: the run then starts a "
                "server of its own."
            )
        if top_k := self._recipe.teacher.top_k:
            await self._check_top(url, temperature, top_k)

    async def _check_top(self, url: str, temperature: float, top_k: int) -> None:
        """Raises ServerError where an external teacher does not say which tokens it finds likeliest."""
        teacher = self._side_models[TEACHER]
        never = set(teacher.unsampled.ids)
        token = next(each for each in range(teacher.vocab_size) if each not in never)
        try:
            await scores.score(
                self._session,
                url,
                [token, token],
                first=1,
                temperature=temperature,
                timeout_seconds=self._recipe.serving.request_timeout_seconds,
                top_k=top_k,
            )
        except ServerError as error:
            raise ServerError(
                f"teacher.url is {url}, which does not say which {top_k} tokens it finds likeliest "
                f"(teacher.top_k): {error} Name a server of SGLang 0.5.23, or leave teacher.top_k out."
            ) from error


@dataclass(frozen=True, slots=True)
class _Role:
    """Role of a server, wherever it runs."""

    name: str
    seed: int
    port: int = 0
    """0: any that is free."""


def staying_servers(recipe: Recipe, changes: ServerChanges) -> list[int]:
    """Numbers of the local servers that were not removed; only how many there are, with free ports."""
    serving = recipe.serving
    if serving.servers:
        return []
    if serving.first_port:
        removed = {urlsplit(url).port for url in changes.removed_local}
        return [n for n in range(serving.num_servers) if serving.first_port + n not in removed]
    return list(range(serving.num_servers - len(changes.removed_local)))


def server_needs(
    recipe: Recipe,
    changes: ServerChanges = _NO_CHANGES,
    *,
    num_evaluation: int = 0,
    side_models: Mapping[str, SideModel] = _NO_SIDE_MODELS,
) -> list[Need]:
    """Needs of the servers that the run starts; a teacher elsewhere is none of them."""
    names = [f"server {index}" for index in staying_servers(recipe, changes)]
    names += [f"evaluation server {index}" for index in range(num_evaluation)]
    found = [server_need(recipe, name) for name in names]
    sides = [
        server_need(side_models[name].recipe, name) for name in side_processes(recipe) if name in side_models
    ]
    return [*found, *sides]


def check_ports(recipe: Recipe) -> None:
    """Raises InputError when a port that the recipe asks for is taken."""
    if recipe.serving.first_port and not recipe.serving.servers and recipe.cluster.backend == "local":
        first = recipe.serving.first_port
        for port in range(first, first + recipe.serving.num_servers):
            check_free(port, recipe.cluster.bind_address, "serving.first_port")


def check_free(port: int, host: str, key: str) -> None:
    """Raises InputError when the port that `key` names is taken."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise InputError(
                f"port {port} ({key}) is taken: {error.strerror}. Set another one, or 0 for any."
            ) from None


def start_like(what: str, recipe: Recipe, model_folder: Path) -> str:
    """The words for a start of `what` (numbers included) on this machine: equal where the network, the engine
    and the layout are. Weights and rows do not count."""
    config = model_folder / "config.json"
    decides = {
        "network": config.read_text(encoding="utf-8", errors="replace") if config.is_file() else "",
        "adapters": recipe.model.model_dump(mode="json")["lora"],
        "device": recipe.placement.device,
        "colocated": recipe.placement.colocated,
        "backend": recipe.cluster.backend,
        "engine": recipe.serving.model_dump(mode="json", exclude={"first_port", "servers"}),
        "layout": recipe.trainer.parallel.model_dump(mode="json"),
    }
    text = json.dumps(decides, sort_keys=True)
    return f"{what} on {platform.node()}, {hashlib.sha256(text.encode()).hexdigest()[:16]}"
