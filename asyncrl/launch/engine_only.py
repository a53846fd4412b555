"""Servers without a trainer here: a Hugging Face folder served as version 0, for `eval` and `chat`, with what
asks it; and, for `asyncrl serve`, a rollout server of a run whose controller is on another machine.

The latter fetches the run's recipe and base model from the controller and knows no more of the run: a person
adds the server to it, the controller brings it the weights. Controller and server show each other the user's
key (serving.api_key_variable).
"""

import asyncio
import contextlib
import logging
import secrets
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from asyncrl.controller.inputs import Inputs, episodes_of, make_conversations, make_evaluator
from asyncrl.errors import InputError, ServerError
from asyncrl.evaluation.evaluator import Evaluator
from asyncrl.launch.engine_options import check_options
from asyncrl.launch.placement import place
from asyncrl.launch.servers import LocalServers, check_ports, server_needs, start_like
from asyncrl.launch.site.site import LocalSite, fetch_model, fetch_recipe
from asyncrl.loops import Waits, background
from asyncrl.model.side_models import opponent_process, read_opponent
from asyncrl.observe.terminal.stage import stage
from asyncrl.recipe import Recipe
from asyncrl.recipe.file import parse_recipe, shown
from asyncrl.rollout.agents.kit import make_agent_kit
from asyncrl.rollout.agents.opponents import OpponentServers, opponent_servers
from asyncrl.rollout.grade import Grader
from asyncrl.serving.fleet import Fleet
from asyncrl.serving.join import FleetSettings
from asyncrl.serving.sglang.http import new_session
from asyncrl.tasks.verifier_cache import VerifierCache
from asyncrl.wire.access import Keys, new_token, read_keys
from asyncrl.wire.fetch import FetchFailed

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServedModel:
    session: aiohttp.ClientSession
    fleet: Fleet
    waits: Waits
    opponents: Mapping[str, Fleet] = field(default_factory=dict)
    """Servers of the recipe's opponents, by their names."""


@dataclass(frozen=True, slots=True)
class LoggedProcesses:
    """Processes whose last lines are logged before they start again, because their logs will be gone."""

    servers: LocalServers

    async def restart_server(self, url: str) -> str:
        """Raises ServerError."""
        if (process := self.servers.processes.get(url)) is not None:
            log.warning("The last lines of %s:\n%s", process.name, process.last_lines())
        return await self.servers.restart(url)

    async def end_server(self, url: str) -> None:
        await self.servers.end(url)


class _NoProcesses:
    """Owner of no server."""

    async def restart_server(self, url: str) -> str:
        raise ServerError(f"{url} is no server of this evaluation")

    async def end_server(self, url: str) -> None:
        pass


@contextlib.asynccontextmanager
async def serve_nothing() -> AsyncIterator[ServedModel]:
    """No server, in the place of servers that have nothing to answer."""
    async with new_session() as session:
        waits = Waits()
        settings = FleetSettings(max_running_requests=1)
        fleet = Fleet([], settings, session=session, waits=waits, processes=_NoProcesses())
        yield ServedModel(session, fleet, waits)


@contextlib.asynccontextmanager
async def serve_folder(
    recipe: Recipe, model_folder: Path, *, seed: int | None = None
) -> AsyncIterator[ServedModel]:
    """Starts the recipe's servers on `model_folder`; they are gone when the block ends. `seed` is that of the
    first server, in place of the recipe's; the others count up.

    The engine loads the folder itself and nothing updates it, so its start-up version is the only one. A
    server that dies is started again; what it said last is logged, because its log ends with the block.
    """
    check_options(recipe)
    async with contextlib.AsyncExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="asyncrl-")))
        keys = read_keys(new_token(), recipe.serving.api_key_variable)
        session = await stack.enter_async_context(new_session(keys))
        fixed = recipe.serving.model_copy(
            update={"extra_arguments": [*recipe.serving.extra_arguments, "--weight-version", "0"]}
        )
        site = LocalSite(recipe.cluster, place(recipe, ("servers", "opponents")))
        side_models = {opponent_process(name): read_opponent(recipe, name) for name in recipe.agent.opponents}
        servers = LocalServers(
            recipe.model_copy(update={"serving": fixed, "seed": recipe.seed if seed is None else seed}),
            model_folder=model_folder,
            logs=logs,
            session=session,
            site=site,
            places=site.places(server_needs(recipe, side_models=side_models)),
            keys=keys,
            side_models=side_models,
        )
        stack.push_async_callback(servers.stop)
        words = f"starting {len(servers.urls) + len(side_models)} server(s)"
        like = start_like(words, recipe, model_folder)
        with stage(f"{words} on {shown(model_folder)}", like=like):
            await servers.start()

        waits = Waits()
        settings = FleetSettings(max_running_requests=fixed.max_running_requests)
        processes = LoggedProcesses(servers)
        fleet = Fleet(servers.urls, settings, session=session, waits=waits, processes=processes)
        fleet.members.serve_fixed(version=0)
        opponents = opponent_servers(fixed, servers.opponent_urls(), session, waits, processes)
        opponents.serve()
        try:
            yield ServedModel(session, fleet, waits, opponents.fleets)
        finally:
            await asyncio.shield(_close(fleet, opponents))


async def _close(fleet: Fleet, opponents: OpponentServers) -> None:
    await asyncio.gather(fleet.members.close(), opponents.close())


@contextlib.asynccontextmanager
async def watched_grader(recipe: Recipe, verifiers: VerifierCache) -> AsyncIterator[Grader]:
    """A grader that says which verdicts it waits for."""
    grader = Grader(recipe.verifying, verifiers, max_fault_retries=recipe.rollout.max_fault_retries)
    async with grader, background(grader.waits.watch(), "waits for verdicts"):
        yield grader


@contextlib.asynccontextmanager
async def asking(inputs: Inputs, hidden: Sequence[Path] = ()) -> AsyncIterator[Callable[[], Evaluator]]:
    """Grader, tools, environments and agents for evaluators, which the result makes: each without a server
    until `Evaluator.on`. No program of the user's can read `hidden`."""
    recipe = inputs.recipe
    async with (
        watched_grader(recipe, inputs.verifiers) as grader,
        episodes_of(recipe, hidden) as episodes,
        serve_nothing() as nothing,
    ):
        conversations = make_conversations(inputs, episodes)
        agents = make_agent_kit(recipe, inputs.codec, hidden=hidden)

        def make() -> Evaluator:
            run_id = secrets.token_hex(4)
            return make_evaluator(inputs, run_id, nothing.fleet, nothing.waits, grader, conversations, agents)

        yield make


MAX_DEATHS = 5
"""Deaths allowed in one start of `asyncrl serve`; the run gives one up after as many restarts."""


@dataclass(frozen=True, slots=True)
class RemoteServer:
    recipe: Recipe
    """The run's recipe, with this machine's one server and its address."""
    model_folder: Path
    key: str


def fetch_server(controller: str, key: str, *, address: str, port: int) -> RemoteServer:
    """Fetches what a server needs from the run at `controller`; it uses `address`. Raises InputError."""
    controller = controller.rstrip("/")
    try:
        raw = fetch_recipe(controller, token=key)
        with stage("fetching the base model"):
            folder = fetch_model(controller, token=key)
    except FetchFailed as error:
        raise InputError(
            f"{error}. The run needs cluster.shared_disk=false, a cluster.bind_address that this machine "
            f"reaches, and serving.api_key_variable with the key that ASYNCRL_TOKEN holds here."
        ) from error
    raw["cluster"] |= {"backend": "local", "bind_address": address, "advertised_address": None}
    raw["serving"] |= {"servers": [], "num_servers": 1, "first_port": port}
    # The numbers of GPUs are those of another machine.
    raw["placement"] = {"device": raw["placement"]["device"]}
    # No two servers sample alike.
    raw["seed"] = secrets.randbelow(2**31)
    recipe = parse_recipe(raw, source=f"the recipe of {controller}")
    check_options(recipe)
    check_ports(recipe)
    return RemoteServer(recipe, folder, key)


async def serve(server: RemoteServer, logs: Path, *, ready: Callable[[str], None]) -> None:
    """Until it is cancelled; calls `ready` with the server's URL. Raises ServerError with the last lines of a
    server that does not start, or that died MAX_DEATHS times."""
    recipe, keys = server.recipe, Keys(server.key)
    site = LocalSite(recipe.cluster, place(recipe, ("servers",)))
    async with new_session(keys) as session:
        servers = LocalServers(
            recipe,
            model_folder=server.model_folder,
            logs=logs,
            session=session,
            site=site,
            places=site.places(server_needs(recipe)),
            keys=keys,
        )
        try:
            words = "starting the server"
            with stage(words, like=start_like(words, recipe, server.model_folder)):
                await servers.start()
            ready(servers.urls[0])
            await _keep(servers)
        finally:
            await asyncio.shield(servers.stop())


async def _keep(servers: LocalServers) -> None:
    (url,) = servers.urls
    process = servers.processes[url]
    for _ in range(MAX_DEATHS):
        code = await process.wait()
        log.warning("The last lines of the server:\n%s", process.last_lines())
        await servers.restart(url)
    code = await process.wait()
    raise ServerError(
        f"the server died {MAX_DEATHS + 1} times, the last time with exit code {code}. Its last lines "
        f"({process.log_path}):\n{process.last_lines()}"
    )
