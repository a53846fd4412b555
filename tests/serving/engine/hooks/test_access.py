"""A real server of a run: closed but for whether it is ready; it loads weights that it fetches over HTTP."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import psutil
import pytest
from fakes.requests import NoRequests
from serving.engine.servers import running_server, write_model

from asyncrl.controller.http_service import ControllerService
from asyncrl.errors import ServerError
from asyncrl.serving.publication import Publication, find_load, install
from asyncrl.serving.sglang import health, http
from asyncrl.wire.access import TOKEN_VARIABLE, Keys, bearer
from asyncrl.wire.file_service import FileRoutes

# Its environment is another one than that of the other servers: it imports SGLang again.
pytestmark = pytest.mark.exhaustive
TOKEN = "a-token-that-appears-nowhere-else"
CLOSED = [
    *[("POST", f"/{path}") for path in ("generate", "abort_request", "pause_generation", "flush_cache")],
    *[("POST", f"/{path}") for path in ("update_weights_from_disk", "weights_checker", "health", "ready")],
    *[
        ("GET", f"/{path}")
        for path in ("model_info", "server_info", "health", "health_generate", "metrics", "")
    ],
    *[
        ("GET", f"/{path}")
        for path in ("readyness", "health_generate", "docs", "openapi.json", "v1/models", "nowhere")
    ],
    ("OPTIONS", "/generate"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int, Path]]:
    """URL, process id and folder; the folder holds `model`, which the server serves, and its `log`."""
    folder = tmp_path_factory.mktemp("closed")
    model = write_model(folder / "model", seed=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(TOKEN_VARIABLE, TOKEN)
        with running_server(model, folder / "log", max_running_requests=4) as (url, pid):
            yield url, pid, folder


@pytest.fixture
async def session(server: tuple[str, int, Path]) -> AsyncIterator[aiohttp.ClientSession]:
    async with http.new_session(Keys(TOKEN, own=[server[0]])) as session:
        yield session


def test_no_process_of_it_listens_on_other_networks(server: tuple[str, int, Path]) -> None:
    process = psutil.Process(server[1])
    family = [process, *process.children(recursive=True)]
    sockets = [each for member in family for each in member.net_connections("tcp")]
    listening = {each.laddr.ip for each in sockets if each.status == psutil.CONN_LISTEN}
    assert listening == {"127.0.0.1"}


async def test_without_the_token_only_readiness_is_told(server: tuple[str, int, Path]) -> None:
    url, _, _ = server
    async with aiohttp.ClientSession() as stranger:
        for header in ({}, bearer("wrong"), bearer(TOKEN + "x")):
            for method, path in CLOSED:
                async with stranger.request(method, url + path, headers=header, json={}) as response:
                    assert response.status == 401, (method, path)
        async with stranger.get(f"{url}/ready") as response:
            assert response.status == 200
        with pytest.raises(aiohttp.WSServerHandshakeError):
            await stranger.ws_connect(f"{url}/v1/realtime")
    assert not await health.is_open(url)


async def test_the_token_opens_the_server_and_is_in_no_log_and_no_command_line(
    server: tuple[str, int, Path], session: aiohttp.ClientSession
) -> None:
    url, pid, folder = server
    assert await health.weight_version(session, url) == "0"
    body = {"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 2}, "return_logprob": True}
    async with session.post(f"{url}/generate", json=body) as response:
        assert response.status == 200, await response.text()
    process = psutil.Process(pid)
    for one in (process, *process.children(recursive=True)):
        assert TOKEN not in " ".join(one.cmdline())
    assert TOKEN not in (folder / "log").read_text()


async def test_a_server_without_our_disk_fetches_a_publication_and_its_digests_are_verified(
    server: tuple[str, int, Path], session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    # Megatron's import takes seconds, which every process of a run of tests would pay.
    from asyncrl.trainer.network.export import read_weights
    from asyncrl.trainer.publishing.host_weights import digests_of

    url, _, folder = server
    run = tmp_path / "run"
    weights = write_model(run / "publications" / "v3", seed=1)
    digests = digests_of(dict(read_weights(weights)))
    service = ControllerService(NoRequests(), files=FileRoutes(folder / "model", run), keys=Keys(TOKEN))
    await service.start()
    try:
        load = find_load(shared_disk=False, service_url=lambda: service.url, run_folder=run)
        await install(session, url, Publication(3, weights, digests), load=load)
        assert await health.weight_version(session, url) == "3"
        missing = Publication(4, run / "publications" / "v4", digests)
        with pytest.raises(ServerError, match=r"NotThere: .*v4/listing.json answered 404"):
            await install(session, url, missing, load=load)
    finally:
        await service.close()
