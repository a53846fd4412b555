"""The controller's service answers nobody without the token of the run, except for its health."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from fakes.requests import NoRequests

from asyncrl.controller.http_service import (
    HEALTH_PATH,
    METRICS_PATH,
    SERVERS_PATH,
    ControllerService,
    Endpoint,
)
from asyncrl.errors import QueueError
from asyncrl.wire.access import Keys, bearer
from asyncrl.wire.messages import COMMIT_PATH, DRAIN_PATH, TAKE_PATH, CommitRequest, QueueClient

TOKEN = "the-token-of-the-run"


class Committing(NoRequests):
    """Answers a commit at the request `answered_at`."""

    def __init__(self, answered_at: int = 1) -> None:
        self.asked: list[CommitRequest] = []
        self._answered_at = answered_at

    async def commit(self, request: CommitRequest, wait_seconds: float) -> bool:
        self.asked.append(request)
        return len(self.asked) == self._answered_at


def one_server(action: str, url: str) -> list[dict[str, Any]]:
    return [{"url": "http://a:1"}]


class Counted:
    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def text(self) -> str:
        return "asyncrl_steps_total 3\n"


@pytest.fixture
async def service() -> AsyncIterator[ControllerService]:
    service = ControllerService(Committing(), servers=one_server, metrics=Counted(), keys=Keys(TOKEN))
    await service.start()
    yield service
    await service.close()


@pytest.mark.parametrize("header", [{}, bearer("wrong"), {"Authorization": f"Basic {TOKEN}"}])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        *[("POST", path) for path in (TAKE_PATH, DRAIN_PATH, COMMIT_PATH, SERVERS_PATH, HEALTH_PATH)],
        *[("GET", path) for path in ("/", METRICS_PATH, "/files/model/listing.json", f"{HEALTH_PATH}/more")],
        ("OPTIONS", TAKE_PATH),
    ],
)
async def test_a_request_without_the_token_gets_401(
    service: ControllerService, method: str, path: str, header: dict[str, str]
) -> None:
    async with aiohttp.request(method, service.url + path, headers=header, data=b"{}") as response:
        assert response.status == 401 and TOKEN not in await response.text()


async def test_health_is_open_and_the_token_opens_the_rest(service: ControllerService) -> None:
    async with aiohttp.request("GET", service.url + HEALTH_PATH) as response:
        assert response.status == 200
    change = {"action": "list", "url": ""}
    async with aiohttp.request(
        "POST", service.url + SERVERS_PATH, json=change, headers=bearer(TOKEN)
    ) as response:
        assert await response.json() == [{"url": "http://a:1"}]


async def test_metrics_need_the_token_unless_the_recipe_opens_them(service: ControllerService) -> None:
    async with aiohttp.request("GET", service.url + METRICS_PATH, headers=bearer(TOKEN)) as response:
        assert response.status == 200 and await response.text() == "asyncrl_steps_total 3\n"
        assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    opened = ControllerService(NoRequests(), metrics=Counted(), has_open_metrics=True, keys=Keys(TOKEN))
    await opened.start()
    try:
        for path, status in ((METRICS_PATH, 200), (TAKE_PATH, 401), (f"{METRICS_PATH}/more", 401)):
            async with aiohttp.request("GET", opened.url + path) as response:
                assert response.status == status, path
        async with aiohttp.request("POST", opened.url + METRICS_PATH) as response:
            assert response.status == 401
    finally:
        await opened.close()


async def test_the_trainers_client_shows_its_token_and_a_wrong_one_is_an_error(
    service: ControllerService,
) -> None:
    client = QueueClient(service.url, token=TOKEN)
    await asyncio.to_thread(client.commit, CommitRequest(3, "folder"))
    client.close()
    stranger = QueueClient(service.url, token="wrong")
    with pytest.raises(QueueError, match="/commit answered 401: this needs the run's token"):
        await asyncio.to_thread(stranger.commit, CommitRequest(3, "folder"))
    stranger.close()


async def test_a_commit_that_takes_long_is_asked_again() -> None:
    slow = Committing(answered_at=3)
    service = ControllerService(slow, keys=Keys(TOKEN))
    await service.start()
    client = QueueClient(service.url, token=TOKEN)
    try:
        await asyncio.to_thread(client.commit, CommitRequest(3, "folder"))
        assert slow.asked == [CommitRequest(3, "folder")] * 3
    finally:
        client.close()
        await service.close()


async def test_the_url_names_the_advertised_address(service: ControllerService) -> None:
    endpoint = Endpoint("0.0.0.0", advertised_host="localhost")
    other = ControllerService(NoRequests(), endpoint=endpoint, keys=Keys(TOKEN))
    await other.start()
    try:
        assert other.url.startswith("http://localhost:")
        async with aiohttp.request("GET", other.url + HEALTH_PATH) as response:
            assert response.status == 200
    finally:
        await other.close()
