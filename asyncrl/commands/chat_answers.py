"""Answers of a chat: what the model is given and writes, and what tools and environments say to that."""

import asyncio
import contextlib
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from asyncrl.errors import InputError, ServerError
from asyncrl.loops import RunPhase, Waits, end_tasks
from asyncrl.model.tokenizer import TextCodec
from asyncrl.observe.terminal.table import printable
from asyncrl.records import EnvironmentSpec, Finish, Observed, SamplingParams, Task, Trajectory, VerifierSpec
from asyncrl.replay.branches import Unrecorded
from asyncrl.replay.group import Group, trajectory_id
from asyncrl.rollout.generate import Generator
from asyncrl.rollout.request_rules import MAX_RETRIES, UNTRAINED, Limits, TurnBounds
from asyncrl.serving.fleet import Fleet
from asyncrl.serving.sglang import control
from asyncrl.turns import conversation as turns
from asyncrl.turns.dialogue import Dialogue
from asyncrl.turns.environment import Message
from asyncrl.turns.history import KEPT_TURNS, REQUEST, is_summary

INCOMPLETE = "\ufffd"
MOST_SHOWN = 2000
"""Characters of one observation that are shown; the model reads what turns.max_observed_tokens leaves."""


@dataclass(frozen=True, slots=True)
class Turn:
    tokens: list[int]
    text: str
    finish: Finish


@dataclass
class Writer:
    """Has the model write, and says what it writes as it comes."""

    codec: TextCodec
    generator: Generator
    temperature: float
    say: Callable[[str], None]
    _number: int = 0

    def __post_init__(self) -> None:
        self.generator.grown = self._show
        self._shown = ""

    async def write(self, tokens: Sequence[int], limit: int) -> Turn:
        """The model's next turn. Cancelled, it ends on the server, too. Raises ServerError."""
        self._number, self._shown = self._number + 1, ""
        task = Task("chat", "", tuple(tokens), None, VerifierSpec(""))
        turn = Trajectory(
            trajectory_id(self._number, 0), task.prompt_tokens, is_greedy=self.temperature == 0.0
        )
        self.generator.limits.bounds[turn.trajectory_id] = TurnBounds(limit, self.codec.stop)
        work = asyncio.create_task(self._run(Group(self._number, task, 0, [turn])))
        try:
            await asyncio.wait([work])
        finally:
            streaming = dict(self.generator.running)
            await end_tasks(work)
            for request_id, server in streaming.items():
                with contextlib.suppress(ServerError):
                    await control.abort(self.generator.fleet.session, server.url, request_id)
        work.result()
        assert turn.finish is not None, "nothing but a cancellation ends a chat's generator early"
        if turn.finish is Finish.LENGTH:
            self.say(f" (cut at {limit} tokens)")
        return Turn(turn.response_tokens(), self._shown, turn.finish)

    async def _run(self, group: Group) -> None:
        async for _ in self.generator.run(group):
            pass

    def _show(self, turn: Trajectory) -> None:
        text = self.codec.decode(turn.response_tokens())
        # A character may be made of several tokens.
        is_whole = turn.finish is not None or not text.endswith(INCOMPLETE)
        if is_whole and text != self._shown:
            self.say(text[len(self._shown) :])
            self._shown = text


def writer_on(
    fleet: Fleet,
    waits: Waits,
    codec: TextCodec,
    context_tokens: int,
    *,
    temperature: float,
    say: Callable[[str], None],
) -> Writer:
    """A writer on the servers of `fleet`."""
    sampling = SamplingParams(max(temperature, 1e-6), context_tokens, codec.stop_token_ids)
    limits = Limits(sampling, context_tokens, stop=codec.stop)
    parts = (Unrecorded(), fleet, waits, limits, MAX_RETRIES, "chat")
    return Writer(codec, Generator(*parts, state=RunPhase(waits), rules=UNTRAINED), temperature, say)


class Conversation:
    """The messages so far and what the model reads of them."""

    def __init__(
        self, codec: TextCodec, *, context_tokens: int, max_new_tokens: int, keeps_tokens: bool = False
    ) -> None:
        """With `keeps_tokens` what was written is never rendered again, as in a trajectory of turns."""
        self.codec = codec
        self.messages: list[dict[str, Any]] = []
        self.context_tokens = context_tokens
        self.max_new_tokens = max_new_tokens
        self.is_raw = not codec.has_chat_template
        self._dialogue = Dialogue(codec, max_observed_tokens=context_tokens) if keeps_tokens else None
        self._known: list[int] = []
        """Tokens up to the end of the last answer, and those of its last turn, where they are kept."""
        self._last: list[int] = []

    def begin(self) -> None:
        """Forgets all of it."""
        self.messages, self._known, self._last = [], [], []

    def ask(self, text: str) -> tuple[tuple[int, ...], int]:
        """(tokens to continue, most tokens of the answer). Raises InputError, and then forgets `text`."""
        message = {"role": "user", "content": text}
        messages = [*self.messages, message]
        if self._known and self._dialogue is not None:
            tokens = (*self._known, *self._dialogue.answer(self._last, [message]))
        else:
            _, tokens = self.codec.render_prompt(text if self.is_raw else messages)
        if not tokens:
            raise InputError(f"the prompt {text!r} has no tokens.")
        room = self._room(tokens)
        if not self.is_raw:
            self.messages = messages
        return tokens, room

    def ask_row(self, prompt: str | list[Message]) -> tuple[tuple[int, ...], int]:
        """As `ask`, for the prompt of a row, which begins a conversation."""
        self.begin()
        _, tokens = self.codec.render_prompt(prompt)
        return tokens, self._room(tokens)

    def answered(self, turn: Turn, context: Sequence[int]) -> None:
        """`context` ends with `turn`, the last one of the answer."""
        if self.is_raw:
            return
        self.messages.append({"role": "assistant", "content": turn.text})
        if self._dialogue is not None:
            self._known, self._last = list(context), turn.tokens

    def _room(self, tokens: Sequence[int]) -> int:
        room = self.context_tokens - len(tokens)
        if room <= 0:
            what = "the line" if self.is_raw or not self.messages else "the conversation"
            raise InputError(
                f"{what} has {len(tokens)} tokens, the model's context {self.context_tokens}: no room is "
                f"left for an answer. Shorten it{', or begin another with /new' if self.messages else ''}."
            )
        return min(self.max_new_tokens, room)


@dataclass(frozen=True, slots=True)
class AskedRow:
    """A row of the data, as a run asks it."""

    prompt: str | list[Message]
    environment: EnvironmentSpec | None
    row: Mapping[str, Any]


@dataclass
class Answers:
    """Answers messages and rows: the model's turns, and what answers those."""

    writer: Writer
    conversation: Conversation
    conversations: turns.Conversations | None = None
    """None without turns."""
    max_turn_tokens: int | None = None
    _played: turns.Conversation | None = None
    """The conversation so far: its tools keep their state from message to message."""
    _open: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)

    async def begin(self) -> None:
        """The next message begins another conversation."""
        self.conversation.begin()
        await self.end_tools()

    async def end_tools(self) -> bool:
        """Kills their process; whether there was one to lose."""
        had_state = self._played is not None and bool(self._played.played)
        self._played = None
        await self._open.aclose()
        return had_state

    async def reply(self, text: str) -> None:
        """Raises InputError where `text` cannot be asked."""
        tokens, limit = self.conversation.ask(text)
        await self._answer(list(tokens), limit, None, {})
        if self.conversation.is_raw:
            await self.end_tools()

    async def play(self, asked: AskedRow) -> None:
        """Asks a row, whose environment answers until it ends the conversation. Raises InputError."""
        await self.begin()
        tokens, limit = self.conversation.ask_row(asked.prompt)
        self.writer.say(f"{printable(self.writer.codec.exact_text(tokens))}\n")
        # Its whole conversation is at hand, so it can be rendered as a run does (prompt.history).
        opening = () if isinstance(asked.prompt, str) else asked.prompt
        await self._answer(list(tokens), limit, asked.environment, asked.row, opening)
        if asked.environment is not None or self.conversation.is_raw:
            await self.begin()

    async def _answer(
        self,
        context: list[int],
        room: int,
        environment: EnvironmentSpec | None,
        row: Mapping[str, Any],
        opening: Sequence[Message] = (),
    ) -> None:
        say, played = self.writer.say, await self._opened(environment, row, opening)
        left = self.conversation.max_new_tokens
        most = sys.maxsize if self.conversations is None else self.conversations.limits.max_turns
        number = 0
        while True:
            of_summary = None if played is None else played.most_turn_tokens()
            number += of_summary is None
            limits = [room, left, self.max_turn_tokens, of_summary]
            turn = await self.writer.write(context, min(limit for limit in limits if limit is not None))
            context, left = context + turn.tokens, left - len(turn.tokens)
            if played is None:
                break
            if environment is None and number >= most and self._calls(turn):
                say(f"\n(turns.max_turns is {most}: these calls are not made)")
                break
            found = await played.answer(turn.tokens, turn.finish, len(context))
            if isinstance(found, turns.Ended):
                say(_words_of_end(found, turn))
                break
            if isinstance(found, turns.Branched):
                observed, context = found.observed, list(found.context)
            else:
                observed, context = found, context + found.tokens
            say(f"\n{_shown(observed)}")
            room = self.conversation.context_tokens - len(context)
            if min(left, room) <= 0:
                say("(no token is left for another turn: see rollout.max_new_tokens, model.context_tokens)")
                break
        say("\n")
        self.conversation.answered(turn, context)

    async def _opened(
        self, environment: EnvironmentSpec | None, row: Mapping[str, Any], opening: Sequence[Message]
    ) -> turns.Conversation | None:
        if self.conversations is None or self._played is not None:
            return self._played
        run = self.conversations
        if environment is None:
            # The limits of a trajectory are here those of each message, of which there are many.
            unbounded = {"max_turns": sys.maxsize, "max_tool_seconds": math.inf}
            run = replace(run, limits=run.limits.model_copy(update=unbounded))
        self._played = await self._open.enter_async_context(run.open(environment, row, opening=opening))
        return self._played

    def _calls(self, turn: Turn) -> bool:
        calls = None if self.conversations is None else self.conversations.calls
        return calls is not None and bool(calls.parse(turn.tokens))


def _words_of_end(ended: turns.Ended, turn: Turn) -> str:
    if ended.verdict is None:
        is_over = ended.finish is Finish.LENGTH and turn.finish is Finish.STOP
        return "\n(turns.max_turns is reached: nothing answers this turn)" if is_over else ""
    verdict = ended.verdict
    score = "" if verdict.score is None else f", score {verdict.score:g}"
    detail = f": {printable(verdict.detail)}" if verdict.detail else ""
    return f"\n(the verdict is {verdict.outcome.value}{score}{detail})"


def _shown(observed: Observed) -> str:
    """Lines that show calls and what was answered."""
    notes = json.loads(observed.notes)
    calls, lines = notes.get("calls", []), list[str]()
    if is_summary(observed.notes):
        lines.append(f"(the context is cut here: prompt, summary and {notes[KEPT_TURNS]} turns stay)")
    for index, message in enumerate(notes["messages"]):
        if index < len(calls):
            lines.append(f"| {_call(calls[index])}")
        content = message.get("content")
        text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
        left_out = len(text) - MOST_SHOWN
        if left_out > 0:
            text = f"{text[:MOST_SHOWN]} [... {left_out} characters more]"
        lines += [f"|   {line}" for line in printable(text).split("\n")]
    if REQUEST in notes:
        lines.append(f"(asked for a summary: {printable(notes[REQUEST])})")
    return "\n".join(lines) + "\n"


def _call(call: Mapping[str, Any]) -> str:
    if call["error"]:
        return f"a call that cannot be made: {printable(call['error'])}"
    return printable(f"{call['name']} {json.dumps(call['arguments'], ensure_ascii=False)}")
