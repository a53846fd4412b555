"""The recorder of all agents of a run: the keys that they show, and the parts that sample and render."""

import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from asyncrl.errors import InputError
from asyncrl.loops.waits import Waits
from asyncrl.model.stop import StopStrings
from asyncrl.records import Trajectory
from asyncrl.replay.trajectory_record import TrajectoryRecord
from asyncrl.rollout.agents.call import Answers
from asyncrl.rollout.agents.reply import Replies
from asyncrl.rollout.agents.request import ChatRequest, RequestRefused, rendered
from asyncrl.rollout.generate import Generator
from asyncrl.rollout.limits import TurnBounds
from asyncrl.turns.dialogue import Dialogue
from asyncrl.turns.environment import Message
from asyncrl.turns.tally import AGENTS, Tally

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
    if name == "seed":
        return "it has no effect"
    return "the recipe's sampling counts, whose distribution the trainer knows"
