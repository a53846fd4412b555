"""`asyncrl servers` against a service that listens: what it lists, changes and refuses."""

import asyncio
import functools
from pathlib import Path

import pytest
from fakes.process_owner import FakeProcesses
from fakes.requests import NoRequests
from fakes.supervisor import FakeSupervisor

from asyncrl.commands.servers import change_servers
from asyncrl.controller.http_service import ControllerService
from asyncrl.controller.progress import change_servers as answer_change
from asyncrl.errors import InputError
from asyncrl.loops import Waits
from asyncrl.serving.fleet import Fleet
from asyncrl.serving.join import FleetSettings
from asyncrl.serving.sglang.http import new_session


async def never_ready(url: str) -> None:
    await asyncio.Event().wait()


async def test_servers_are_listed_added_and_removed_while_a_run_continues(tmp_path: Path) -> None:
    async with new_session() as session:
        fleet = Fleet(
            ["http://a:1"],
            FleetSettings(max_running_requests=8),
            session=session,
            waits=Waits(),
            processes=FakeProcesses(never_ready),
        )
        fleet.members.serve_fixed(3)
        service = ControllerService(
            NoRequests(), servers=functools.partial(answer_change, fleet, FakeSupervisor())
        )
        await service.start()
        (tmp_path / "controller.url").write_text(service.url)

        async def change(action: str, url: str = "") -> dict[str, str]:
            rows = await asyncio.to_thread(change_servers, tmp_path, action, url)
            return {row["url"]: row["state"] for row in rows}

        try:
            assert await change("list") == {"http://a:1": "serving"}
            with pytest.raises(InputError, match="the last rollout server"):
                await change("remove", "http://a:1")
            assert await change("add", "http://b:2") == {"http://a:1": "serving", "http://b:2": "stale"}
            with pytest.raises(InputError, match="is there already: stale"):
                await change("add", "http://b:2")
            with pytest.raises(InputError, match='"b:2" is not the URL of a server'):
                await change("add", "b:2")
            assert await change("remove", "http://a:1") == {"http://b:2": "stale"}
            with pytest.raises(InputError, match="There is no server http://a:1"):
                await change("remove", "http://a:1")
        finally:
            await fleet.members.close()
            await service.close()


def test_a_run_that_is_not_live_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no controller.url"):
        change_servers(tmp_path, "list", "")
    (tmp_path / "controller.url").write_text("http://127.0.0.1:9")
    with pytest.raises(InputError, match="does not answer"):
        change_servers(tmp_path, "list", "")
    for action, url in (("list", "http://a:1"), ("add", "")):
        with pytest.raises(InputError, match=f"{action} takes"):
            change_servers(tmp_path, action, url)
