"""Sums over servers."""

from fakes.engine import FakeEngine
from fakes.fleets import Crew

from asyncrl.serving.pass_sums import DecodeSums, PassSums


async def test_what_a_server_did_stays_counted_when_it_leaves_or_comes_again(
    pair: Crew, two: FakeEngine
) -> None:
    fleet = pair.fleet
    leaving = fleet.members.servers[two.url]
    fleet.router.acquire(leaving, 3)
    leaving.num_retractions = 2
    leaving.passes = PassSums(DecodeSums(5.0))
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
    assert fleet.utilization.passes().decode.passes >= 5.0
