"""Sums over servers."""

import pytest
from fakes.engine import FakeEngine
from fakes.fleets import Crew, fleet_of_two


async def test_what_a_server_did_stays_counted_when_it_leaves_or_comes_again(
    pair: Crew, two: FakeEngine
) -> None:
    fleet = pair.fleet
    leaving = fleet.members.servers[two.url]
    fleet.router.acquire(leaving, 3)
    leaving.num_retractions = 2
    fleet.members.remove(two.url)
    # It is added again while its streams end, and removed once more.
    fleet.members.add(two.url)
    streamed, _ = fleet.utilization.stream_seconds()
    busy = fleet.utilization.busy_seconds()
    fleet.router.release(leaving, 3)
    fleet.members.remove(two.url)
    assert two.url not in fleet.members.servers
    assert fleet.utilization.stream_seconds()[0] >= streamed > 0.0
    assert fleet.utilization.busy_seconds() >= busy > 0.0
    assert fleet.utilization.num_retractions() == 2


async def test_streams_are_counted_in_seconds_of_each_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("asyncrl.serving.server.now_seconds", lambda: now[0])
    async with fleet_of_two() as fleet:
        server, _ = fleet.members.servers.values()
        fleet.router.acquire(server, 4)
        now[0] += 3.0
        fleet.router.release(server, 1)
        # Four streams for three seconds.
        assert server.stream_seconds == pytest.approx(12.0)
