"""A server that `asyncrl serve` starts: what it is given by the controller, and that it comes back."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes.models import write_model
from fakes.recipes import make_recipe
from fakes.requests import NoRequests

from asyncrl.commands import serve as command
from asyncrl.controller.http_service import ControllerService
from asyncrl.errors import InputError, ServerError
from asyncrl.launch import engine_only
from asyncrl.launch.engine_only import RemoteServer, fetch_server
from asyncrl.recipe.file import dump_recipe
from asyncrl.system.network import free_ports
from asyncrl.wire.access import Keys
from asyncrl.wire.file_service import FileRoutes

KEY = "the-key-of-the-user"


@pytest.fixture
async def controller(tmp_path: Path) -> AsyncIterator[str]:
    """The URL of a run that has two servers of its own and waits for more."""
    model, run = write_model(tmp_path / "model"), tmp_path / "run"
    run.mkdir()
    recipe = make_recipe(
        model,
        serving={"num_servers": 2, "max_total_tokens": 4096, "api_key_variable": "SGLANG_KEY"},
        placement={"device": "gpu", "trainer": [0], "servers": [1, 2]},
        cluster={"bind_address": "0.0.0.0", "advertised_address": "node-7", "shared_disk": False},
    )
    (run / "recipe.yaml").write_text(dump_recipe(recipe))
    service = ControllerService(NoRequests(), files=FileRoutes(model, run), keys=Keys("token", external=KEY))
    await service.start()
    yield service.url
    await service.close()


async def fetched(controller: str, key: str, port: int) -> RemoteServer:
    return await asyncio.to_thread(fetch_server, controller, key, address="127.0.0.1", port=port)


async def test_a_server_elsewhere_gets_the_settings_and_the_model_of_the_run(
    controller: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (port,) = free_ports(1)
    server = await fetched(f"{controller}/", KEY, port)
    serving, cluster = server.recipe.serving, server.recipe.cluster
    assert (serving.num_servers, serving.first_port, serving.max_total_tokens) == (1, port, 4096)
    assert server.recipe.placement.servers == [] and server.recipe.placement.device == "gpu"
    assert cluster.host() == cluster.bind_address == "127.0.0.1"
    assert server.model_folder.is_relative_to(tmp_path / "cache")
    for file in (tmp_path / "model").iterdir():
        assert (server.model_folder / file.name).read_bytes() == file.read_bytes()
    assert (await fetched(controller, KEY, port)).model_folder == server.model_folder


async def test_who_has_no_key_of_the_run_is_told_what_the_run_needs(controller: str) -> None:
    with pytest.raises(InputError, match=r"answered 401.* The run needs cluster.shared_disk=false"):
        await fetched(controller, "wrong", 0)


@pytest.mark.parametrize(
    ("token", "words", "said"),
    [
        ("", [], "ASYNCRL_TOKEN is not set. Set it to the key that serving.api_key_variable"),
        (KEY, [], "no way to other networks, so its address is not known. Give it with --address."),
    ],
)
def test_a_server_that_nobody_could_reach_is_not_started(
    token: str, words: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASYNCRL_TOKEN", token)
    monkeypatch.setattr(command, "outward_address", lambda: "127.0.0.1")
    arguments = SimpleNamespace(controller="http://127.0.0.1:9", address=None, port=0)
    with pytest.raises(InputError, match=re.escape(said)):
        command.run(arguments)  # type: ignore[arg-type]


class DyingServers:
    """One server that dies at once, however often it is started."""

    def __init__(self) -> None:
        self.urls, self.num_restarts = ["http://a:1"], 0
        self.processes = {"http://a:1": self}
        self.log_path = Path("server-0.log")

    async def wait(self) -> int:
        return -9

    def last_lines(self) -> str:
        return "out of memory"

    async def restart(self, url: str) -> str:
        self.num_restarts += 1
        return url


async def test_a_server_that_keeps_dying_is_given_up_with_its_last_words() -> None:
    servers: Any = DyingServers()
    with pytest.raises(ServerError, match=r"died 6 times, the last time with exit code -9.*\n.*memory"):
        await engine_only._keep(servers)
    assert servers.num_restarts == engine_only.MAX_DEATHS
