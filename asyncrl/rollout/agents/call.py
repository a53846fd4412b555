"""One call of an agent: the turns that answer it, and their replies as they come."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Protocol

from asyncrl.records import RecordedCall, Trajectory
from asyncrl.rollout.agents.reply import Reply
from asyncrl.rollout.agents.request import ChatRequest, RequestRefused


@dataclass(eq=False)
class Choice:
    """One reply of a call."""

    recorded: RecordedCall
    line: Trajectory
    """The trajectory or branch whose turn the reply is."""
    reply: Reply | None = None
    error: RequestRefused | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def tokens(self) -> list[int]:
        """Those of the turn so far."""
        return self.line.turns()[self.recorded.turn]

    def change(self) -> None:
        """Its turn has got tokens, or its end."""
        self._changed.set()
        self._changed = asyncio.Event()

    def is_over(self) -> bool:
        return self.reply is not None or self.error is not None

    async def changes(self) -> AsyncIterator[None]:
        """Yields after each change, until the reply is whole. Raises RequestRefused where none will come."""
        while not self.is_over():
            await self._changed.wait()
            yield
        if self.error is not None:
            raise self.error

    async def whole(self) -> Reply:
        """The reply, once it is whole. Raises RequestRefused where none will come."""
        async for _ in self.changes():
            pass
        assert self.reply is not None
        return self.reply


@dataclass(eq=False)
class Call:
    request: ChatRequest
    name: str
    """The completion's; the same after a restart."""
    created: int
    """Unix time."""
    choices: list[Choice]

    async def replies(self) -> list[Reply]:
        """All replies, once they are whole. Raises RequestRefused where one will not come."""
        return [await choice.whole() for choice in self.choices]


class Answers(Protocol):
    """The `Session` of a trajectory, as the endpoint knows it."""

    refusal: str
    """Why the last refused request was."""

    def begin(self, request: ChatRequest, *, is_retry: bool) -> Call:
        """Raises RequestRefused."""
        ...
