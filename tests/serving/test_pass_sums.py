"""What servers say of their passes, added up over servers and over processes that begin at 0."""

import pytest
from fakes.engine import FakeEngine

from asyncrl.errors import ServerError
from asyncrl.serving.pass_sums import DecodeSums, LineSums, PassSums
from asyncrl.serving.server import Server
from asyncrl.serving.sglang import health, http

DECODE = DecodeSums.of_decode(4.0, 10.0, 0.125) + DecodeSums.of_decode(8.0, 12.0, 0.375)
PREFILL = LineSums(1.0, 40.0, 0.125, 1600.0, 5.0)


def told(times: float) -> PassSums:
    """`times` of each."""
    decode, prefill = ([times * x for x in sums.columns().values()] for sums in (DECODE, PREFILL))
    return PassSums(DecodeSums(*decode), LineSums(*prefill))


def test_sums_add_up_and_differ_by_what_came_since() -> None:
    assert told(1.0) + told(2.0) == told(3.0)
    assert told(3.0).since(told(1.0)) == told(2.0)
    assert told(3.0).decode.columns() == {
        "passes": 6.0,
        "size": 36.0,
        "seconds": 1.5,
        "size_squared": 240.0,
        "size_seconds": 3 * (4 * 0.125 + 8 * 0.375),
        "held": 66.0,
        "held_squared": 3 * (100.0 + 144.0),
        "held_seconds": 3 * (10 * 0.125 + 12 * 0.375),
        "size_held": 3 * (40.0 + 96.0),
    }


def test_a_new_process_begins_at_0_and_what_the_old_one_said_stays_counted() -> None:
    server = Server("http://one")
    for times in (4.0, 5.0, 2.0, 3.0):
        server.count_passes(told(times))
    assert server.passes == told(5.0 + 3.0)


async def test_a_server_tells_its_passes_and_one_that_does_not_is_named() -> None:
    async with FakeEngine() as engine, http.new_session() as session:
        engine.passes = told(1.0)
        assert await health.passes(session, engine.url) == told(1.0)
        engine.passes = None
        with pytest.raises(ServerError, match="does not say how long passes took .KeyError"):
            await health.passes(session, engine.url)
