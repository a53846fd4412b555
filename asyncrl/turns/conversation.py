"""One trajectory's conversation, but for the model: answers its turns until it is over.

A turn with calls is answered by the tools, another one by the environment; without either the conversation is
over, and the row's verifier judges. Used alike by rollouts, evaluations and chat.
"""

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from asyncrl.errors import InputError
from asyncrl.model.tokenizer import TextCodec
from asyncrl.recipe.sections.turns import Turns
from asyncrl.records import EnvironmentSpec, Finish, Observed
from asyncrl.turns.calls import Call, CallFormat, CallResult
from asyncrl.turns.dialogue import Dialogue
from asyncrl.turns.environment import End, Message, Observation, Recovery
from asyncrl.turns.episode import (
    EnvironmentFault,
    Episode,
    Episodes,
    RecordedTurn,
    TurnLimit,
    bring_back,
    lost_part,
    read_turn,
    reply_messages,
    result_messages,
    shortened,
)
from asyncrl.turns.history import (
    KEPT_TURNS,
    REQUEST,
    Continued,
    Exchange,
    RenderedHistory,
    Summaries,
    is_summary,
)
from asyncrl.turns.tally import TURNS, Tally, TurnFaults
from verifiers.verdict import MAX_SHAPING, Outcome, Verdict, as_number, fault, over_limit


@dataclass(frozen=True, slots=True)
class Ended:
    """The conversation is over after its last turn."""

    finish: Finish
    verdict: Verdict | None = None
    """The environment's, or a fault; None: the row's verifier judges the last turn."""


@dataclass(frozen=True, slots=True)
class Branched:
    """The answer to a turn, where the next turn's context does not begin with what is recorded: a branch of
    the trajectory begins there."""

    observed: Observed
    """Without tokens: those are in the context."""
    context: list[int]


@dataclass(frozen=True, slots=True)
class Played:
    """A turn that was answered in an earlier process, or before a fault."""

    tokens: Sequence[int]
    notes: str


@dataclass
class Conversations:
    """Opens the conversations of a run."""

    codec: TextCodec
    dialogue: Dialogue
    episodes: Episodes
    limits: Turns
    calls: CallFormat | None = None
    """None without tools."""
    clock: Callable[[], float] = time.monotonic
    num_answered: int = 0
    """Turns since the start."""
    answer_seconds: float = 0.0
    """Time of environments and tools since the start."""
    tally: Tally = field(default_factory=lambda: Tally(TURNS))
    faults: TurnFaults = field(default_factory=TurnFaults)
    """Warns of them."""
    history: RenderedHistory | None = None
    """Renders the context of each turn (prompt.history: as_rendered); None: it is as it was sampled."""
    summaries: Summaries | None = None
    """None without turns.summarize."""

    def by(self, codec: TextCodec, calls: CallFormat | None) -> "Conversations":
        """The same with other stop strings, and counts of their own."""
        dialogue = self.dialogue if codec is self.codec else self.dialogue.by(codec)
        return replace(
            self,
            codec=codec,
            dialogue=dialogue,
            history=None if self.history is None else RenderedHistory(dialogue),
            summaries=None if self.summaries is None else replace(self.summaries, dialogue=dialogue),
            calls=calls,
            num_answered=0,
            answer_seconds=0.0,
            tally=Tally(TURNS, self.tally.warned),
        )

    def open(
        self,
        environment: EnvironmentSpec | None,
        row: Mapping[str, Any],
        played: Sequence[Played] = (),
        *,
        opening: Sequence[Mapping[str, Any]] = (),
    ) -> "Conversation":
        """The conversation of a row, whose first turns were `played`. Starts nothing before it is asked.
        `opening`: the prompt's messages; one without any is a text, behind which all stays as sampled."""
        return Conversation(self, environment, row, list(played), [dict(each) for each in opening])


@dataclass
class Conversation:
    """Async context manager: its process ends with it."""

    run: Conversations
    environment: EnvironmentSpec | None
    row: Mapping[str, Any]
    played: list[Played]
    opening: list[Message]
    _episode: Episode | None = None
    _is_final: bool = False
    """Its process was given something that no other one can continue (Recovery.NEITHER)."""
    _asked: str = ""
    """The part that was asked last, in words for people."""
    _seconds: float = field(init=False)

    def __post_init__(self) -> None:
        self._seconds = sum(float(json.loads(each.notes).get("seconds", 0.0)) for each in self.played)

    @property
    def seconds(self) -> float:
        """Time of environment and tools so far, in earlier processes too."""
        return self._seconds

    async def __aenter__(self) -> "Conversation":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close()

    def answerer(self) -> str:
        """Its environment or its tools, in words for people."""
        return "the tools" if self.environment is None else f'the environment "{self.environment.name}"'

    def most_turn_tokens(self) -> int | None:
        """Most sampled tokens of the next turn where it is a summary, else None."""
        summaries = self.run.summaries
        return summaries.settings.max_tokens if summaries is not None and self._is_asked() else None

    async def answer(
        self, turn: Sequence[int], finish: Finish, num_tokens: int
    ) -> Observed | Branched | Ended:
        """The answer to a turn that ended so, the last of `num_tokens` in its context. A fault is retried
        with a new process first."""
        faults = self.run.faults
        for attempt in range(self.run.limits.num_fault_retries + 1):
            self._asked = f"the start of {self.answerer()}"
            try:
                if self._is_asked():
                    found: Observed | Branched | Ended = self._summed_up(turn)
                else:
                    found = await self._timed_answer(turn, finish, num_tokens)
            except TurnLimit as limit:
                faults.answered(self._asked)
                return Ended(finish, over_limit(str(limit)))
            except EnvironmentFault as error:
                self.run.tally.add("environment_faults", f"{self._asked}: {error}", is_known=True)
                await self._close()
                faults.failed(self._asked, str(error), error.trace)
                await asyncio.sleep(faults.in_a_row.pause_seconds(self._asked))
                if self._is_final or attempt == self.run.limits.num_fault_retries:
                    faults.gave_up(self._asked, str(error))
                    return Ended(finish, replace(fault(f"environment: {error}"), trace=error.trace))
                faults.retried(self._asked, str(error))
            else:
                faults.answered(self._asked)
                self.run.num_answered += 1
                if not isinstance(found, Ended):
                    observed = found if isinstance(found, Observed) else found.observed
                    self.played.append(Played(turn, observed.notes))
                return found
        raise AssertionError("unreachable")

    def _is_asked(self) -> bool:
        """Whether the turn that follows the played ones is a summary."""
        return bool(self.played) and REQUEST in json.loads(self.played[-1].notes)

    def _turns(self) -> list[Played]:
        """Those that were played, summaries left out."""
        return [each for each in self.played if not is_summary(each.notes)]

    def _summed_up(self, summary: Sequence[int]) -> Branched:
        assert self.run.summaries is not None
        answered = [Exchange(each.tokens, json.loads(each.notes)["messages"]) for each in self._turns()]
        context, num_kept = self.run.summaries.context(self.opening, summary, answered)
        return Branched(Observed([], json.dumps({"messages": [], KEPT_TURNS: num_kept})), context)

    async def _timed_answer(
        self, turn: Sequence[int], finish: Finish, num_tokens: int
    ) -> Observed | Branched | Ended:
        calls = self.run.calls.parse(turn) if self.run.calls is not None else []
        if finish is Finish.LENGTH:
            # Cut off by a limit, which is no mistake of the model's.
            calls = [call for call in calls if not call.is_unfinished]
        if not calls and self.environment is None:
            return Ended(finish)
        is_last = len(self._turns()) + 1 >= self.run.limits.max_turns
        if calls and is_last:
            return Ended(Finish.LENGTH)
        episode = await self._opened()
        left = self.run.limits.max_tool_seconds - self._seconds
        if left <= 0:
            raise TurnLimit(f"the trajectory spent {self._seconds:.3g} s in tools (turns.max_tool_seconds)")
        self._ask(episode, calls)
        began = self.run.clock()
        try:
            results = await episode.call(calls) if calls else []
            reply = None if calls else await episode.step(self.run.codec.decode(turn))
        finally:
            spent = self.run.clock() - began
            self._seconds += spent
            self.run.answer_seconds += spent
        if isinstance(reply, End):
            return Ended(finish, _verdict(reply))
        if reply is None:
            return self._observed_results(turn, calls, results, spent, num_tokens)
        if is_last:
            return Ended(Finish.LENGTH)
        messages = reply_messages(reply)
        notes = {"seconds": spent, "messages": messages, "reward": _reward(reply)}
        try:
            return self._answered(turn, messages, notes, num_tokens)
        except (InputError, TypeError, ValueError) as error:
            # A role or a key that the chat template does not know, or what is no JSON.
            raise EnvironmentFault(f"its messages cannot be written: {error}") from error

    def _observed_results(
        self,
        turn: Sequence[int],
        calls: Sequence[Call],
        results: Sequence[CallResult],
        seconds: float,
        num_tokens: int,
    ) -> Observed | Branched:
        assert self.run.calls is not None
        messages = result_messages(results)
        losses = [place for place, result in enumerate(results) if result.has_lost]
        notes = {
            **({"losses": losses} if losses else {}),
            "seconds": seconds,
            "calls": [asdict(call) for call in calls],
            "are_errors": [result.is_error for result in results],
            "messages": messages,
        }
        if not self.run.calls.is_inline:
            return self._answered(turn, messages, notes, num_tokens)
        tokens: list[int] = []
        for result in results:
            before, after = self.run.calls.around(result)
            tokens += self.run.dialogue.inline(before, shortened(result.output), after)
        return Observed(tokens, json.dumps(notes))

    def _answered(
        self, turn: Sequence[int], messages: Sequence[Message], notes: Mapping[str, Any], num_tokens: int
    ) -> Observed | Branched:
        """The answer in tokens. Raises InputError where the chat template cannot write it."""
        if self.run.history is None or not self.opening:
            tokens, summaries = self.run.dialogue.answer(turn, messages), self.run.summaries
            if summaries is not None and self.opening and summaries.are_due(num_tokens + len(tokens)):
                request = summaries.settings.request
                tokens = self.run.dialogue.answer(turn, messages, request=request)
                notes = {**notes, REQUEST: request}
            return Observed(tokens, json.dumps(notes))
        answered = [Exchange(each.tokens, json.loads(each.notes)["messages"]) for each in self.played]
        found = self.run.history.answer(self.opening, answered, Exchange(turn, messages))
        if isinstance(found, Continued):
            return Observed(found.tokens, json.dumps(notes))
        return Branched(Observed([], json.dumps(notes)), found.context)

    async def _opened(self) -> Episode:
        """The episode, at the point where the recorded turns end."""
        if self._episode is None:
            self._episode = await self.run.episodes.open(self.environment)
            await self._episode.start(self.row)
            await bring_back(self._episode, self._recorded())
        return self._episode

    def _ask(self, episode: Episode, calls: Sequence[Call]) -> None:
        """Notes what is asked from here on, for its faults."""
        self.run.faults.answered(self._asked)
        self._asked = self.answerer()
        if calls:
            # The model may have written any names.
            tools = episode.recoveries.tools
            for call in calls:
                if call.name and call.name not in tools:
                    names = f"{call.name!r}, of {', '.join(tools) or 'none'}"
                    self.run.tally.add("unknown_tool_calls", names)
            known = sorted({f'"{call.name}"' for call in calls if call.name in tools})
            self._asked = f"the tools {', '.join(known)}" if known else "the tools"
        self._is_final = False
        if episode.recoveries.some_are(Recovery.NEITHER):
            asked = [*self._recorded(), RecordedTurn("", [], list(calls) or None)]
            self._is_final = lost_part(episode.recoveries, asked) is not None

    def _recorded(self) -> list[RecordedTurn]:
        return [read_turn(self.run.codec.decode(each.tokens), each.notes) for each in self._turns()]

    async def _close(self) -> None:
        if self._episode is not None:
            episode, self._episode = self._episode, None
            await episode.close()


def _reward(reply: Observation) -> float | None:
    """The reward of the turn that it answers. Raises EnvironmentFault where it is none."""
    if reply.reward is None:
        return None
    try:
        return as_number(reply.reward, "the reward of an Observation", -MAX_SHAPING, MAX_SHAPING)
    except ValueError as error:
        raise EnvironmentFault(str(error)) from error


def _verdict(end: End) -> Verdict | None:
    if end.score is None:
        return None
    outcome = Outcome.CORRECT if end.score >= 1.0 else Outcome.WRONG
    return Verdict(outcome, end.score, extracted=end.extracted, detail=end.detail, method="environment")
