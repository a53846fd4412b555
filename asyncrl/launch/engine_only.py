"""Servers without a trainer, for `eval` and `chat`: any Hugging Face folder, served as version 0."""

import asyncio
import contextlib
import logging
import tempfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from asyncrl.errors import ServerError
from asyncrl.launch.alike import start_like
from asyncrl.launch.engine_options import check_options
from asyncrl.launch.placement import place
from asyncrl.launch.servers import LocalServers, server_needs
from asyncrl.launch.site.site import LocalSite
from asyncrl.loops import Waits
from asyncrl.model.side_models import opponent_process, read_opponent
from asyncrl.observe.terminal.stage import stage
from asyncrl.recipe import Recipe
from asyncrl.recipe.file import shown
from asyncrl.rollout.agents.opponents import OpponentServers, opponent_servers
from asyncrl.serving.fleet import Fleet
from asyncrl.serving.join import FleetSettings
from asyncrl.serving.sglang.http import new_session
from asyncrl.wire.access import new_token, read_keys

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
