"""Episodes in the test's own process, and a conversation's other parts in plain numbers."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from asyncrl.recipe.sections.turns import Turns
from asyncrl.records import EnvironmentSpec
from asyncrl.turns.calls import Call, CallResult
from asyncrl.turns.conversation import Conversations
from asyncrl.turns.environment import End, Message, Observation, Recovery
from asyncrl.turns.episode import Episode, Recoveries

Step = Callable[[int, str], Observation | End]
"""(turn, counted from 0; its text) -> the answer."""


class FakeEpisode:
    def __init__(self, step: Step, recovery: Recovery, may_answer: asyncio.Event) -> None:
        self.recoveries = Recoveries(recovery, {"tool": recovery})
        self.row: Mapping[str, Any] | None = None
        self.texts: list[str] = []
        self.calls: list[Call] = []
        self.is_closed = False
        self._step = step
        self._may_answer = may_answer

    async def start(self, row: Mapping[str, Any]) -> list[Message] | None:
        self.row = row
        return None

    async def step(self, text: str) -> Observation | End:
        self.texts.append(text)
        await self._may_answer.wait()
        return self._step(len(self.texts) - 1, text)

    async def call(self, calls: Sequence[Call]) -> list[CallResult]:
        self.calls += calls
        await self._may_answer.wait()
        return [CallResult(call.name, f"{call.name} was called") for call in calls]

    async def close(self) -> None:
        self.is_closed = True


class FakeEpisodes:
    """Opens episodes that answer by `step`."""

    def __init__(self, step: Step, recovery: Recovery = Recovery.REPLAYABLE) -> None:
        self.opened: list[FakeEpisode] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self._step = step
        self._recovery = recovery

    async def open(self, environment: EnvironmentSpec | None) -> Episode:
        self.opened.append(FakeEpisode(self._step, self._recovery, self.may_answer))
        return self.opened[-1]


OBSERVED = [40, 41]
"""The tokens of each observation."""


class FakeDialogue:
    def answer(self, turn: Sequence[int], messages: Sequence[Message]) -> list[int]:
        return list(OBSERVED)

    def by(self, codec: object) -> "FakeDialogue":
        return self


def conversations(episodes: FakeEpisodes, **limits: Any) -> Conversations:
    """The text of a turn is its tokens in words; each observation has the same two tokens."""
    known = {"max_turns": 4, "max_tool_seconds": 60.0, "num_fault_retries": 1} | limits
    return Conversations(
        SimpleNamespace(decode=lambda tokens: " ".join(map(str, tokens))),  # type: ignore[arg-type]
        FakeDialogue(),  # type: ignore[arg-type]
        episodes,
        Turns(**known),
    )
