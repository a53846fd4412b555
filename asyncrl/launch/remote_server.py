"""A rollout server of a run whose controller is on another machine: `asyncrl serve`.

Fetches the run's recipe and base model from the controller, starts SGLang as the run starts its own servers,
and starts it again when it dies. Knows no more of the run: a person adds the server to it, the controller
brings it the weights. Controller and server show each other the user's key (serving.api_key_variable).
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from asyncrl.errors import InputError, ServerError
from asyncrl.launch.alike import start_like
from asyncrl.launch.engine_options import check_options
from asyncrl.launch.placement import place
from asyncrl.launch.servers import LocalServers, check_ports, server_needs
from asyncrl.launch.site.fetched import fetch_model, fetch_recipe
from asyncrl.launch.site.site import LocalSite
from asyncrl.observe.terminal.stage import stage
from asyncrl.recipe import Recipe
from asyncrl.recipe.file import parse_recipe
from asyncrl.serving.sglang.http import new_session
from asyncrl.wire.access import Keys
from asyncrl.wire.fetch import FetchFailed

log = logging.getLogger(__name__)

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
