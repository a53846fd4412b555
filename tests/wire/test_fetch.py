"""Folders over real HTTP: whole, broken off and resumed, damaged, refused."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest
from aiohttp import web
from fakes.requests import NoRequests

from asyncrl.controller.http_service import ControllerService
from asyncrl.system.files import sha256_of
from asyncrl.wire import fetch
from asyncrl.wire.access import Keys
from asyncrl.wire.fetch import FetchFailed, fetch_folder
from asyncrl.wire.file_service import LISTING, MODEL, FileRoutes, ListedFile, Listing, folder_url, url_of

TOKEN = "the-token-of-the-run"
WEIGHTS = bytes(range(256)) * 40_000


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "PAUSE_SECONDS", 0.0)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder with a publication, next to a model whose files are links, as in the cache of a hub."""
    publication = tmp_path / "run" / "publications" / "v7"
    publication.mkdir(parents=True)
    (publication / "model.safetensors").write_bytes(WEIGHTS)
    (publication / "config.json").write_text("{}")
    (publication / ".config.json.part").write_text("half")
    (tmp_path / "run" / "journal.sqlite").write_text("not for servers")
    blob = tmp_path / "blobs" / "1234"
    blob.parent.mkdir()
    blob.write_text("tokens")
    (tmp_path / "model" / "templates").mkdir(parents=True)
    (tmp_path / "model" / "templates" / "a b.jinja").symlink_to(blob)
    return tmp_path / "run"


@contextlib.asynccontextmanager
async def serving(run: Path, *, files_key: str = "") -> AsyncIterator[str]:
    """The URL of a controller's service."""
    service = ControllerService(
        NoRequests(),
        files=FileRoutes(run.parent / "model", run),
        keys=Keys(TOKEN, external=files_key),
    )
    await service.start()
    try:
        yield service.url
    finally:
        await service.close()


class CutConnections:
    """A relay whose connections each break off after `num_bytes`; remembers which ranges were asked."""

    def __init__(self, target: str, num_bytes: int) -> None:
        self._target = urlsplit(target)
        self._num_bytes = num_bytes
        self.ranges: list[int] = []

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        found = re.search(rb"range: bytes=(\d+)-", request, re.IGNORECASE)
        self.ranges.append(int(found[1]) if found else 0)
        answer, forward = await asyncio.open_connection(self._target.hostname, self._target.port)
        # The answer then ends with the connection.
        forward.write(request[:-2] + b"Connection: close\r\n\r\n")
        left = self._num_bytes
        while left and (chunk := await answer.read(min(left, 2**16))):
            writer.write(chunk)
            await writer.drain()
            left -= len(chunk)
        forward.transport.abort()
        writer.close()


async def get(url: str, target: Path, token: str = TOKEN) -> Path:
    return await asyncio.to_thread(fetch_folder, url, target, token=token)


async def test_a_publication_and_the_base_model_arrive_as_they_are(run: Path, tmp_path: Path) -> None:
    publication = run / "publications" / "v7"
    async with serving(run) as url:
        here = await get(folder_url(url, publication, run), tmp_path / "a" / "v7")
        model = await get(url_of(url, MODEL), tmp_path / "b")
    assert sorted(path.name for path in here.iterdir()) == ["config.json", "model.safetensors"]
    assert (here / "model.safetensors").read_bytes() == WEIGHTS
    assert (model / "templates" / "a b.jinja").read_text() == "tokens"


async def test_a_fetch_that_breaks_off_again_and_again_continues_where_it_was(
    run: Path, tmp_path: Path
) -> None:
    async with serving(run) as url:
        relay = CutConnections(url, num_bytes=4_000_000)
        async with relay as cut:
            here = await get(f"{cut}/files/publications/v7", tmp_path / "v7")
    assert (here / "model.safetensors").read_bytes() == WEIGHTS
    # The listing, config.json, and three parts of the weights, 10.24 MB in all.
    first, second, third = relay.ranges[2:]
    assert first == 0 and 3_900_000 < second < 4_000_000 and second < third < 2 * 4_000_000


async def test_what_an_earlier_process_fetched_is_not_fetched_again(run: Path, tmp_path: Path) -> None:
    target = tmp_path / "v7"
    target.mkdir()
    (target / "model.safetensors.part").write_bytes(WEIGHTS[:9_000_000])
    (target / "config.json").write_text("{}")
    (target / "left-over.safetensors").write_text("of another version")
    async with serving(run) as url:
        relay = CutConnections(url, num_bytes=2**30)
        async with relay as whole:
            await get(f"{whole}/files/publications/v7", target)
    assert relay.ranges == [0, 9_000_000]
    assert (target / "model.safetensors").read_bytes() == WEIGHTS
    assert not (target / "left-over.safetensors").exists()


async def test_a_connection_that_brings_nothing_ends_the_fetch(run: Path, tmp_path: Path) -> None:
    async with serving(run) as url:
        async with CutConnections(url, num_bytes=0) as dead:
            with pytest.raises(FetchFailed, match=r"listing.json cannot be read"):
                await get(f"{dead}/files/publications/v7", tmp_path / "v7")


async def test_a_wrong_digest_is_refused_and_its_bytes_are_deleted(run: Path, tmp_path: Path) -> None:
    weights = run / "publications" / "v7" / "model.safetensors"
    target = tmp_path / "v7"
    target.mkdir()
    # One byte of what came before the connection broke.
    (target / "model.safetensors.part").write_bytes(b"x" + WEIGHTS[1:5_000_000])
    async with serving(run) as url:
        with pytest.raises(FetchFailed, match=rf"the listing says {sha256_of(weights)}: .* damaged"):
            await get(f"{url}/files/publications/v7", target)
        assert not list(target.glob("model*"))
        # The next attempt starts from nothing.
        await get(f"{url}/files/publications/v7", target)
    assert (target / "model.safetensors").read_bytes() == WEIGHTS


@pytest.mark.parametrize("token", ["", "wrong", TOKEN[:-1]])
async def test_without_the_token_nothing_is_handed_out(run: Path, tmp_path: Path, token: str) -> None:
    async with serving(run) as url:
        with pytest.raises(FetchFailed, match="answered 401: this needs the run's token"):
            await get(url_of(url, MODEL), tmp_path / "m", token)


async def test_the_users_own_servers_fetch_with_their_own_key(run: Path, tmp_path: Path) -> None:
    async with serving(run, files_key="key-of-the-user") as url:
        await get(f"{url}/files/publications/v7", tmp_path / "v7", "key-of-the-user")


@pytest.mark.parametrize(
    "path",
    [
        "model/../journal.sqlite",
        "model/%2e%2e/run/journal.sqlite",
        "publications/v7/..%2f..%2fjournal.sqlite",
        "journal.sqlite",
        "publications/v8/listing.json",
        "publications/v7/absent",
        "checkpoints/step-1/listing.json",
    ],
)
async def test_nothing_else_is_handed_out(run: Path, path: str) -> None:
    async with serving(run) as url:
        parts = urlsplit(url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        # As it stands: clients resolve such paths before they send them.
        writer.write(
            f"GET /files/{path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
        )
        status = await reader.readline()
        writer.close()
        await writer.wait_closed()
    assert b" 404 " in status


async def test_a_listing_that_leads_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    async def listing(_: web.Request) -> web.Response:
        return web.Response(body=msgspec.json.encode(Listing([ListedFile("../evil", 1, "0")])))

    app = web.Application()
    app.router.add_get(f"/files/model/{LISTING}", listing)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        with pytest.raises(FetchFailed, match="lists '../evil', which is outside of the folder"):
            await get(f"http://127.0.0.1:{runner.addresses[0][1]}/files/model", tmp_path / "m")
    finally:
        await runner.cleanup()
    assert not (tmp_path / "evil").exists()
