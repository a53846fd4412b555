"""The recorder of all agents of a run: the keys that they show, and the parts that sample and render."""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from asyncrl.errors import InputError
from asyncrl.loops import Waits
from asyncrl.model.token_text import StopStrings
from asyncrl.records import RecordedCall, Trajectory
from asyncrl.replay.branches import TrajectoryRecord
from asyncrl.rollout.agents.opponents import Opponents
from asyncrl.rollout.agents.reply import Replies, Reply
from asyncrl.rollout.agents.request import ChatRequest, RequestRefused, rendered
from asyncrl.rollout.generate import Generator
from asyncrl.rollout.request_rules import TurnBounds
from asyncrl.turns.dialogue import Dialogue
from asyncrl.turns.environment import Message
from asyncrl.turns.tally import AGENTS, Tally


@dataclass(eq=False)
class Choice:
    """One reply of a call."""

    num_prompt_tokens: int
    reply: Reply | None = None
    error: RequestRefused | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def tokens(self) -> Sequence[int]:
        """Those of the turn so far."""
        return () if self.reply is None else self.reply.tokens

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


@dataclass(eq=False, kw_only=True)
class RecordedChoice(Choice):
    """A reply of the policy."""

    recorded: RecordedCall
    line: Trajectory
    """The trajectory or branch whose turn it is."""

    def tokens(self) -> list[int]:
        return self.line.turns()[self.recorded.turn]


@dataclass(eq=False)
class Call:
    request: ChatRequest
    name: str
    """The completion's; the same after a restart."""
    created: int
    """Unix time."""
    choices: Sequence[Choice]

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


log = logging.getLogger(__name__)


@dataclass
class CallRecorder:
    """One per run, and one per evaluation."""

    queue: TrajectoryRecord
    generator: Generator
    replies: Replies
    dialogue: Dialogue
    waits: Waits
    max_calls: int
    """Most calls of a trajectory."""
    roles: Sequence[str] = ()
    """Names that calls give in `model`; empty where any name will do."""
    opponents: Opponents = field(default_factory=Opponents)
    tally: Tally = field(default_factory=lambda: Tally(AGENTS))
    sessions: dict[str, Answers] = field(default_factory=dict)
    """Key -> the session of an open trajectory."""
    num_calls: int = 0
    """Since the start, without retries and what was found in the journal."""
    num_branches: int = 0
    """Opened since the start."""
    _watchers: dict[str, Callable[[], None]] = field(default_factory=dict)
    """Trajectory or branch -> told when it has grown."""
    _said: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.generator.grown = self._grown

    def new_key(self) -> str:
        return f"sk-{secrets.token_urlsafe(32)}"

    def watch(self, line: Trajectory, told: Callable[[], None]) -> None:
        self._watchers[line.trajectory_id] = told

    def unwatch(self, line: Trajectory) -> None:
        self._watchers.pop(line.trajectory_id, None)

    def _grown(self, line: Trajectory) -> None:
        watcher = self._watchers.get(line.trajectory_id)
        if watcher is not None:
            watcher()

    def say_overridden(self, request: ChatRequest) -> None:
        """Once for each parameter of a run."""
        for name in request.overridden:
            if name not in self._said:
                self._said.add(name)
                log.warning("an agent asks for %s: %s", name, _effect(name))

    def bounds(self, request: ChatRequest) -> TurnBounds:
        """Limits of a turn that answers `request`."""
        own = self.generator.limits.stop
        stop = StopStrings((*own.strings, *request.stop), self.replies.codec.exact_text)
        return TurnBounds(request.max_tokens, stop)

    def context(self, request: ChatRequest) -> list[int]:
        """Tokens of a conversation that no recorded turn is part of. Raises RequestRefused."""
        codec = self.replies.codec
        try:
            if codec.template is None:
                raise InputError("The model folder has no chat template.")
            template = codec.template.with_tools(list(request.tools) or None)
            text = template.render(rendered(request.messages))
            return list(codec.encode(text, add_special_tokens=False))
        except InputError as error:
            raise RequestRefused(str(error), param="messages") from error

    def behind(self, turn: Sequence[int], messages: Sequence[Message]) -> list[int]:
        """Tokens between a recorded turn and the next one. Raises RequestRefused."""
        try:
            return self.dialogue.answer(turn, messages)
        except InputError as error:
            raise RequestRefused(str(error), param="messages") from error


def _effect(name: str) -> str:
    if name == "tool_choice":
        return "the model chooses by itself (tool_choice auto); constrained sampling is no part of training"
    if name in ("seed", "thinking", "reasoning"):
        return "it has no effect"
    return "the recipe's sampling counts, whose distribution the trainer knows"
