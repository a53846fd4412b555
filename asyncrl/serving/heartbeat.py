"""Signs of life of one server. All streams from it share them, because one alone says little.

A request gets no token while it waits in its server's queue, after the server took its cache back for others,
and during a weight update. Silent is a server from which no stream brings anything and whose scheduler does
not answer either; `Probe` asks it, and leaves one that stays silent.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from asyncrl.errors import ServerError
from asyncrl.loops import now_seconds


class Heartbeat:
    def __init__(self) -> None:
        self._seen_seconds = 0.0
        self._limits: dict[asyncio.Timeout, str | None] = {}
        """Time limit of each stream -> why it was cut off."""

    def beat(self) -> None:
        """The server showed that it works."""
        self._seen_seconds = now_seconds()

    def silence_seconds(self) -> float:
        return now_seconds() - self._seen_seconds

    @contextlib.asynccontextmanager
    async def streaming(self, limit: asyncio.Timeout | None = None) -> AsyncIterator[None]:
        """Around a stream. Raises TimeoutError when `limit` passes, ServerError when the server is left."""
        limit = limit or asyncio.timeout(None)
        why: str | None = None
        try:
            async with limit:
                self._limits[limit] = None
                try:
                    yield
                finally:
                    why = self._limits.pop(limit)
        except TimeoutError:
            if why is not None:
                raise ServerError(why) from None
            raise

    def cut_streams(self, why: str) -> None:
        """Ends what streams, now: a server that hangs breaks no connection."""
        now = now_seconds()
        for limit in self._limits:
            due = limit.when()
            # One that its own client has cut is over.
            if due is None or due > now:
                self._limits[limit] = why
                limit.reschedule(now)
