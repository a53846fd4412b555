"""The fleet: which servers serve and hear of a publish, and whose weights are left alone meanwhile."""

from pathlib import Path

import pytest
from fakes.engine import FakeEngine
from fakes.fleets import TAKEN, Crew, crew_on

from asyncrl.errors import ServerError
from asyncrl.records import PublishOutcome


async def test_servers_serve_once_the_first_publication_is_verified_on_them(
    one: FakeEngine, two: FakeEngine, tmp_path: Path
) -> None:
    async with crew_on([one, two], tmp_path) as crew:
        assert crew.fleet.members.serving() == []
        await crew.announce(0)
        await crew.until_serving(2)
        assert {server.version for server in crew.fleet.members.serving()} == {0}


async def test_no_install_runs_while_the_trainer_owns_the_wire(
    pair: Crew, one: FakeEngine, two: FakeEngine
) -> None:
    fleet = pair.fleet
    fleet.hand_wire_to_trainer()
    fleet.members.fail(fleet.members.servers[two.url], "test")
    calls = len(two.calls)
    await pair.never(lambda: len(fleet.members.serving()) == 2)
    assert len(two.calls) == calls
    await pair.announce(1, {one.url: TAKEN})
    await pair.until_serving(2)


async def test_the_trainer_is_handed_a_server_that_is_only_suspected(pair: Crew, one: FakeEngine) -> None:
    fleet, suspected = pair.fleet, pair.fleet.members.servers[one.url]
    one.hold_answers()
    async with pair.running(fleet.members.suspect(suspected, ServerError("a stream broke"))):
        await pair.until(lambda: suspected.state == "suspect")
        assert suspected in fleet.members.serving() and one.url in fleet.hand_wire_to_trainer()
        one.version = "1"
        await pair.announce(1, dict.fromkeys(fleet.members.servers, TAKEN))
        one.answer_again()
    assert (suspected.state, suspected.version) == ("serving", 1)


@pytest.mark.parametrize("outcome", [None, PublishOutcome(False, 0.0, "no route")])
async def test_a_suspected_server_that_misses_a_publish_is_not_put_back_into_service(
    pair: Crew, one: FakeEngine, two: FakeEngine, outcome: PublishOutcome | None
) -> None:
    fleet, suspected = pair.fleet, pair.fleet.members.servers[one.url]
    one.hold_answers()
    async with pair.running(fleet.members.suspect(suspected, ServerError("a stream broke"))):
        await pair.until(lambda: suspected.state == "suspect")
        fleet.hand_wire_to_trainer()
        await pair.announce(1, {two.url: TAKEN} | ({} if outcome is None else {one.url: outcome}))
        assert [server.url for server in fleet.members.serving()] == [two.url]
        one.answer_again()
    await pair.until_serving(2)
    assert one.version == "1" and suspected.version == 1
