"""Servers that are far slower than the others: who is called slow, for how long, and what it gets."""

import pytest
from fakes.fleets import fleet_of_two

from asyncrl.serving.server import Server
from asyncrl.serving.speed import SpeedGauge


class Clock:
    """In place of the loop's; moves when a test moves it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def stream(self, server: Server, tokens: int, seconds: float) -> None:
        """One stream that brings `tokens` in `seconds`."""
        server.begin(1)
        self.now += seconds
        server.count_tokens(tokens)
        server.end(1)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("asyncrl.serving.server.now_seconds", clock)
    monkeypatch.setattr("asyncrl.serving.heartbeat.now_seconds", clock)
    return clock


def test_a_server_below_the_share_of_the_others_median_is_slow_for_one_window(clock: Clock) -> None:
    one, two, three = (Server(f"http://{n}") for n in range(3))
    gauge = SpeedGauge(0.3)
    # 10, 12 and 2 tokens per second and stream: 2 < 0.3 x median(10, 12) = 3.3.
    clock.stream(one, 100, 10.0)
    clock.stream(two, 120, 10.0)
    clock.stream(three, 20, 10.0)
    gauge.judge([one, two, three])
    assert [s.is_slow for s in (one, two, three)] == [False, False, True]
    clock.stream(one, 100, 10.0)
    clock.stream(two, 100, 10.0)
    clock.stream(three, 2, 2.0)
    gauge.judge([one, two, three])
    assert not three.is_slow, "it must be tried again"
    # Only what came since counts: 4 tokens per second.
    clock.stream(one, 100, 10.0)
    clock.stream(two, 100, 10.0)
    clock.stream(three, 40, 10.0)
    gauge.judge([one, two, three])
    assert not three.is_slow


@pytest.mark.parametrize("seconds", [0.0, 0.9])
def test_a_server_that_barely_streamed_and_one_without_others_is_not_slow(
    clock: Clock, seconds: float
) -> None:
    one, two = Server("http://a"), Server("http://b")
    clock.stream(one, 1, 100.0)
    clock.stream(two, 0, seconds)
    SpeedGauge(0.9).judge([one, two])
    assert not one.is_slow and not two.is_slow


async def test_a_slow_server_gets_no_new_group_but_keeps_its_own() -> None:
    async with fleet_of_two(max_running_requests=8) as fleet:
        slow, fast = fleet.members.servers.values()
        slow.mark_slow(True)
        fleet.router.acquire(fast, 4)
        assert fleet.router.pick(4) is slow and fleet.router.pick(4, is_new=True) is fast
        assert fleet.router.pick(4, before=slow) is slow
        fleet.router.acquire(fast, 4)
        # No room on the fast one: it is waited for.
        assert fleet.router.pick(4, is_new=True) is None
        fast.mark_slow(True)
        assert fleet.router.pick(4, is_new=True) is slow


async def test_streams_are_counted_in_tokens_per_second_of_each_stream(clock: Clock) -> None:
    async with fleet_of_two() as fleet:
        server, _ = fleet.members.servers.values()
        fleet.router.acquire(server, 4)
        clock.now += 3.0
        fleet.router.release(server, 1)
        # Four streams for three seconds.
        assert server.stream_seconds == pytest.approx(12.0)
