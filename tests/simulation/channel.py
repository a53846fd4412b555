"""Lines from a simulated server to one client."""

import asyncio
from collections import deque


class Channel:
    """Lines from the server to one client, in order."""

    def __init__(self) -> None:
        self.lines: deque[bytes | Exception | None] = deque()
        self.arrived = asyncio.Event()

    def put(self, line: bytes | Exception | None) -> None:
        self.lines.append(line)
        self.arrived.set()

    async def get(self) -> bytes | None:
        while not self.lines:
            self.arrived.clear()
            await self.arrived.wait()
        line = self.lines.popleft()
        if isinstance(line, Exception):
            raise line
        return line
