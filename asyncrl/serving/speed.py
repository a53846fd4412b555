"""Which servers are far slower than the others, by tokens per second and running stream.

A server is judged over windows of `slow_seconds`. It is slow when its speed was below `slow_share` of the
median of the others that streamed. It then gets no new groups for one window, and is tried again.
"""

import asyncio
import logging
import statistics
from dataclasses import dataclass, field

from asyncrl.recipe import Serving
from asyncrl.serving.fleet import Fleet
from asyncrl.serving.server import Server

log = logging.getLogger(__name__)


@dataclass(slots=True)
class SpeedGauge:
    """`judge` is called once per window."""

    slow_share: float
    _seen: dict[str, tuple[int, float]] = field(default_factory=dict)
    """URL -> tokens and stream seconds at the start of the window."""

    def judge(self, servers: list[Server]) -> None:
        """Marks each server by the window that ends now."""
        speeds = {server.url: speed for server in servers if (speed := self._speed(server)) is not None}
        for server in servers:
            others = [speed for url, speed in speeds.items() if url != server.url]
            was_slow = server.is_slow
            # Left out for a window: tried again, whatever its last streams did.
            server.mark_slow(
                not was_slow
                and server.url in speeds
                and bool(others)
                and speeds[server.url] < self.slow_share * statistics.median(others)
            )
            if server.is_slow:
                log.warning(
                    "server %s is slow: %.1f tokens/s per stream, the others %.1f; it gets no new groups",
                    server.url,
                    speeds[server.url],
                    statistics.median(others),
                )
        self._seen = {server.url: (server.num_tokens, server.stream_seconds) for server in servers}

    def _speed(self, server: Server) -> float | None:
        """Tokens per second and stream in this window; None when it streamed for less than a second."""
        server.count_streams()
        tokens, seconds = self._seen.get(server.url, (0, 0.0))
        streamed = server.stream_seconds - seconds
        return (server.num_tokens - tokens) / streamed if streamed >= 1.0 else None


async def watch_speed(fleet: Fleet, *, recipe: Serving) -> None:
    """Judges all servers every `slow_seconds` until it is cancelled; returns at once without a slow_share."""
    if recipe.slow_share is None:
        return
    gauge = SpeedGauge(recipe.slow_share)
    while True:
        await asyncio.sleep(recipe.slow_seconds)
        gauge.judge(list(fleet.members.servers.values()))
