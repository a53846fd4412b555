"""Servers that are far slower than the others: who is called slow, for how long, and what it gets."""

import asyncio

import pytest
from fakes.fleets import fleet_of_two

from asyncrl.serving.server import Server
from asyncrl.serving.speed import SpeedGauge


def stream(server: Server, tokens: int, seconds: float) -> None:
    server.num_tokens += tokens
    server.stream_seconds += seconds


def test_a_server_below_the_share_of_the_others_median_is_slow_for_one_window() -> None:
    async def scenario() -> None:
        one, two, three = (Server(f"http://{n}") for n in range(3))
        gauge = SpeedGauge(0.3)
        # 10, 12 and 2 tokens per second and stream: 2 < 0.3 x median(10, 12) = 3.3.
        stream(one, 100, 10.0)
        stream(two, 120, 10.0)
        stream(three, 20, 10.0)
        gauge.judge([one, two, three])
        assert [s.is_slow for s in (one, two, three)] == [False, False, True]
        stream(one, 100, 10.0)
        stream(two, 100, 10.0)
        stream(three, 2, 2.0)
        gauge.judge([one, two, three])
        assert not three.is_slow, "it must be tried again"
        # Only what came since counts: 4 tokens per second.
        stream(one, 100, 10.0)
        stream(two, 100, 10.0)
        stream(three, 40, 10.0)
        gauge.judge([one, two, three])
        assert not three.is_slow

    asyncio.run(scenario())


@pytest.mark.parametrize("seconds", [0.0, 0.9])
def test_a_server_without_work_and_one_without_others_is_not_slow(seconds: float) -> None:
    async def scenario() -> None:
        one, two = Server("http://a"), Server("http://b")
        stream(one, 1, 100.0)
        stream(two, 0, seconds)
        SpeedGauge(0.9).judge([one, two])
        assert not one.is_slow and not two.is_slow

    asyncio.run(scenario())


def test_a_slow_server_gets_no_new_group_but_goes_on_with_its_own() -> None:
    async def scenario() -> None:
        async with fleet_of_two(max_running_requests=8) as fleet:
            slow, fast = fleet.servers.values()
            slow.is_slow = True
            fleet.acquire(fast, 4)
            assert fleet.pick(4) is slow and fleet.pick(4, is_new=True) is fast
            assert fleet.pick(4, before=slow) is slow
            fleet.acquire(fast, 4)
            # No room on the fast one: it is waited for.
            assert fleet.pick(4, is_new=True) is None
            fast.is_slow = True
            assert fleet.pick(4, is_new=True) is slow

    asyncio.run(scenario())


def test_streams_are_counted_in_tokens_per_second_of_each_stream() -> None:
    async def scenario() -> None:
        async with fleet_of_two() as fleet:
            server, _ = fleet.servers.values()
            fleet.acquire(server, 4)
            server.counted_seconds -= 3.0
            fleet.release(server, 1)
            # Four streams for three seconds.
            assert server.stream_seconds == pytest.approx(12.0, abs=0.1)

    asyncio.run(scenario())
