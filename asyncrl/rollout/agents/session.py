"""The calls of one trajectory's agent: placed in its conversations, sampled, recorded.

A call continues the conversation that its messages extend, where that waits for its next turn, and opens a
branch otherwise: at its first call, when the agent rewrites the history, or for a second sample. Calls that
an earlier start of the agent made are answered from the record, by their canonical request and in their
order.
"""

import asyncio
import hashlib
import json
import time
from collections import defaultdict, deque
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from asyncrl.loops import now_seconds
from asyncrl.records import Finish, Observed, RecordedCall, Segment, Trajectory, branch_number
from asyncrl.replay.branches import keep_calls, open_line, record_call
from asyncrl.replay.group import Group, GroupState
from asyncrl.rollout.agents.recorder import Call, CallRecorder, Choice, RecordedChoice
from asyncrl.rollout.agents.request import ChatRequest, RequestRefused, with_role
from asyncrl.turns.environment import Message


@dataclass(frozen=True, slots=True)
class KnownTurn:
    line: Trajectory
    turn: int


@dataclass
class KnownTurns:
    """Finds the answered turn that a conversation continues, by its messages.

    An agent says the whole conversation each time. Where its messages begin with those of an earlier call and
    the reply that this one got, the sampled tokens stand for them, and only what is new is rendered. Messages
    are compared as `canonical` makes them; white space around what the assistant wrote does not count, since
    agents strip it.
    """

    _by_messages: dict[str, list[KnownTurn]] = field(default_factory=lambda: defaultdict(list))

    def add(self, request: ChatRequest, reply: Message, turn: KnownTurn) -> None:
        """`turn` is the `reply` to `request`."""
        self._by_messages[_digests(request, [*request.messages, reply])[-1]].append(turn)

    def find(self, request: ChatRequest) -> tuple[list[KnownTurn], int] | None:
        """The turns that may be the last of the assistant's in the messages of `request`, and how many
        messages end with it; None where the role has no such turn after these messages."""
        messages = request.messages
        last = max((i for i, message in enumerate(messages) if message["role"] == "assistant"), default=None)
        if last is None:
            return None
        found = self._by_messages.get(_digests(request, messages[: last + 1])[-1])
        return (found, last + 1) if found else None


def _digests(request: ChatRequest, messages: Sequence[Message]) -> list[str]:
    """One for the messages up to each, of the role and the tools of `request`."""
    running = hashlib.sha256(json.dumps([request.role, request.tools], sort_keys=True).encode())
    found = []
    for message in messages:
        same = message
        if message["role"] == "assistant":
            same = {**message, "content": message["content"].strip()}
        running.update(json.dumps(same, sort_keys=True).encode())
        found.append(running.hexdigest())
    return found


OVER = "This trajectory has ended."


class Session:
    """From the start of a trajectory's agent to its end."""

    def __init__(self, recorder: CallRecorder, group: Group, trajectory: Trajectory) -> None:
        self.key = recorder.new_key()
        self.limit = ""
        """The limit that refused a call; its agent may then end as it likes."""
        self.failure: Exception | None = None
        """Ends the trajectory, and the run where it is none of GenerationFailed."""
        self._recorder = recorder
        self._group = group
        self._trajectory = trajectory
        self._work: set[asyncio.Task[None]] = set()
        self._restart()

    def __enter__(self) -> "Session":
        self._recorder.sessions[self.key] = self
        return self

    def __exit__(self, *_: object) -> None:
        self._recorder.sessions.pop(self.key, None)
        if self._group.state is not GroupState.OPEN or self._trajectory.finish is not None:
            self._recorder.opponents.forget(self._trajectory)

    def _restart(self) -> None:
        self.refusal = ""
        self._known = KnownTurns()
        self._answered: list[RecordedCall] = []
        self._num_opposed = 0
        self._made: dict[str, list[Call]] = defaultdict(list)
        self._busy: set[str] = set()
        self._replayed: dict[str, deque[list[RecordedCall]]] = defaultdict(deque)
        for _, choices in groupby(self._trajectory.calls, key=lambda call: call.ordinal):
            same = list(choices)
            self._replayed[same[0].digest].append(same)
        self._own_seconds = 0.0
        self._own_since: float | None = now_seconds()

    async def restart(self) -> None:
        """The agent is started once more: its next calls are looked up in the record first."""
        await self.stop()
        self._restart()

    async def stop(self) -> None:
        """Leaves calls that are not answered."""
        for task in self._work:
            task.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)

    def keep_answered(self) -> None:
        """Drops what was sampled for no answered call. After `stop`, with the group open."""
        keep_calls(self._recorder.queue, self._group, self._trajectory, self._answered)

    def has_call(self) -> bool:
        """Whether a call waits for its answer."""
        return self._own_since is None

    def roles(self) -> set[str]:
        """Roles that have an answer."""
        return {self._trajectory.branch(call.branch).role for call in self._answered}

    def num_replies(self) -> int:
        """Those of the policy and of opponents."""
        return len(self._answered) + self._num_opposed

    def own_seconds(self) -> float:
        """Time of the agent itself: without the times when a call waited for its answer."""
        return self._own_seconds + (0.0 if self._own_since is None else now_seconds() - self._own_since)

    def begin(self, request: ChatRequest, *, is_retry: bool) -> Call:
        """The call that answers `request`: the same as before where a client asks again for what was lost.
        Raises RequestRefused."""
        if self._group.state is not GroupState.OPEN or self._trajectory.finish is not None:
            raise RequestRefused(OVER)
        opponents = self._recorder.opponents.generators
        request = with_role(request, self._recorder.roles, opponents)
        self._recorder.say_overridden(request)
        digest = request.digest()
        if is_retry and self._made[digest]:
            return self._made[digest][-1]
        if request.role in opponents:
            return self._ask_opponent(request, digest)
        if self._replayed[digest]:
            recorded = self._replayed[digest].popleft()
            choices = [_choice(each, self._trajectory.branch(each.branch)) for each in recorded]
        else:
            choices = self._place(request, digest)
        first = choices[0].recorded
        name = f"{self._trajectory.trajectory_id}-{first.ordinal}"
        call = Call(request, name, int(time.time()), choices)
        self._made[digest].append(call)
        for choice in choices:
            self._busy.add(choice.line.trajectory_id)
        self._start(self._answer(call, choices))
        return call

    def _start(self, work: Coroutine[None, None, None]) -> None:
        if not self._work and self._own_since is not None:
            self._own_seconds += now_seconds() - self._own_since
            self._own_since = None
        task = asyncio.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._work.discard(task)
        if not self._work:
            self._own_since = now_seconds()
        self._recorder.waits.notify()

    def _ask_opponent(self, request: ChatRequest, digest: str) -> Call:
        """The call of an opponent, whose every call says the whole conversation."""
        self._count()
        context = self._recorder.context(request)
        self._check_context(len(context))
        numbers = range(request.num_replies)
        made = [f"{digest}:{len(self._made[digest])}:{number}" for number in numbers]
        name = f"{self._trajectory.trajectory_id}-{request.role}-{made[0]}"
        call = Call(request, name, int(time.time()), [Choice(len(context)) for _ in numbers])
        self._made[digest].append(call)
        self._start(self._oppose(call, context, made))
        return call

    async def _oppose(self, call: Call, context: list[int], made: Sequence[str]) -> None:
        async def reply(choice: Choice, name: str) -> None:
            request = call.request
            said = await self._recorder.opponents.reply(
                request.role,
                context,
                self._recorder.bounds(request),
                trajectory=self._trajectory,
                call=name,
            )
            if said is None:
                raise RequestRefused(OVER)
            self._num_opposed += 1
            choice.reply = self._recorder.replies.of(
                request, name, said.tokens, said.logprobs, said.finish, num_prompt_tokens=len(context)
            )

        pairs = zip(call.choices, made, strict=True)
        await asyncio.gather(*(self._noting(choice, reply(choice, name)) for choice, name in pairs))

    def _count(self) -> None:
        """One more call. Raises RequestRefused."""
        if sum(map(len, self._made.values())) >= self._recorder.max_calls:
            raise self._refused(f"agent.max_calls is {self._recorder.max_calls}: no more calls.", "max_calls")
        self._recorder.num_calls += 1

    def _place(self, request: ChatRequest, digest: str) -> list[RecordedChoice]:
        ordinal = max((call.ordinal for call in self._trajectory.calls), default=-1) + 1
        self._count()
        return [self._place_one(request, digest, ordinal, choice) for choice in range(request.num_replies)]

    def _place_one(self, request: ChatRequest, digest: str, ordinal: int, choice: int) -> RecordedChoice:
        found = self._known.find(request)
        observation: Observed | None = None
        if found is None:
            line = self._open(self._recorder.context(request), request.role)
        else:
            turns, num_messages = found
            known = next((turn for turn in turns if self._awaits_turn(turn)), turns[-1])
            tokens = known.line.turns()[known.turn]
            said = request.messages[num_messages:]
            new = self._recorder.behind(tokens, said)
            if self._awaits_turn(known):
                line, observation = known.line, Observed(new, json.dumps({"messages": said}))
                self._check_room(line, len(new))
            else:
                context = [*known.line.prompt_tokens, *known.line.response_tokens()]
                until = _num_tokens_before(known.line, known.turn) + len(tokens)
                line = self._open([*context[:until], *new], request.role)
        turn = line.num_observations() + (observation is not None)
        number = branch_number(line.trajectory_id)
        recorded = RecordedCall(ordinal, choice, digest, number, turn)
        record_call(self._recorder.queue, self._group, self._trajectory, recorded, observation)
        self._busy.add(line.trajectory_id)
        return _choice(recorded, line)

    def _awaits_turn(self, known: KnownTurn) -> bool:
        """Whether the turn is the last of its conversation and was read."""
        line = known.line
        return (
            line.turn_finish is not None
            and line.num_observations() == known.turn
            and line.trajectory_id not in self._busy
        )

    def _open(self, context: list[int], role: str) -> Trajectory:
        self._check_context(len(context))
        line = open_line(self._recorder.queue, self._group, self._trajectory, context, role=role)
        if line is not self._trajectory:
            self._recorder.num_branches += 1
        return line

    def _check_context(self, num_tokens: int) -> None:
        most = self._recorder.generator.limits.context_tokens
        if num_tokens >= most:
            raise self._refused(
                f"The messages are {num_tokens} tokens, but the context is {most} tokens "
                f"(model.context_tokens): no room is left for a reply.",
                "context_length_exceeded",
            )

    def _check_room(self, line: Trajectory, num_new: int) -> None:
        limits = self._recorder.generator.limits
        self._check_context(len(line.prompt_tokens) + line.num_response_tokens() + num_new)
        if line.num_sampled_tokens() >= limits.sampling.max_new_tokens:
            raise self._refused(
                f"The replies of this conversation have {line.num_sampled_tokens()} tokens, all of "
                f"rollout.max_new_tokens.",
                "max_new_tokens",
            )

    def _refused(self, message: str, code: str) -> RequestRefused:
        self.limit = message
        return RequestRefused(message, param="messages", code=code)

    async def _answer(self, call: Call, choices: Sequence[RecordedChoice]) -> None:
        await asyncio.gather(*(self._sample(call, choice) for choice in choices))

    async def _sample(self, call: Call, choice: RecordedChoice) -> None:
        line = choice.line
        self._recorder.watch(line, choice.change)

        async def sample() -> None:
            await self._generate(call.request, choice)
            self._record(call, choice)

        try:
            await self._noting(choice, sample())
        finally:
            self._recorder.unwatch(line)
            self._busy.discard(line.trajectory_id)

    async def _noting(self, choice: Choice, work: Coroutine[None, None, None]) -> None:
        """Does the work that makes the choice's reply; its failure is the choice's error."""
        try:
            await work
        except RequestRefused as error:
            choice.error = error
        except Exception as error:  # the player raises it, whatever it is: a task of its own would lose it
            self.failure = self.failure or error
            choice.error = RequestRefused(str(error))
        except asyncio.CancelledError:
            choice.error = RequestRefused(OVER)
            raise
        finally:
            choice.change()

    async def _generate(self, request: ChatRequest, choice: RecordedChoice) -> None:
        """Samples what the turn lacks: nothing where it was recorded whole."""
        line = choice.line
        if line.num_observations() > choice.recorded.turn or line.turn_finish is not None:
            return
        generator = self._recorder.generator
        generator.limits.bounds[line.trajectory_id] = self._recorder.bounds(request)
        async for _ in generator.run(self._group, [line]):
            pass
        if self._group.state is not GroupState.OPEN or line.turn_finish is None:
            raise RequestRefused(OVER)

    def _record(self, call: Call, choice: RecordedChoice) -> None:
        line, turn = choice.line, choice.recorded.turn
        tokens = choice.tokens()
        choice.reply = self._recorder.replies.of(
            call.request,
            f"{line.trajectory_id}:{turn}",
            tokens,
            [logprob for part in _turn_parts(line, turn) for logprob in part.behavior_logprobs],
            self._finish(call.request, tokens),
            num_prompt_tokens=choice.num_prompt_tokens,
        )
        self._answered.append(choice.recorded)
        self._known.add(call.request, choice.reply.message(), KnownTurn(line, turn))

    def _finish(self, request: ChatRequest, tokens: list[int]) -> Finish:
        """How a turn ended, which is not recorded of each."""
        if tokens[-1] in self._recorder.generator.limits.sampling.stop_token_ids:
            return Finish.STOP
        has_stopped = self._recorder.bounds(request).stop.search(tokens).end is not None
        return Finish.STOP if has_stopped else Finish.LENGTH


def _choice(recorded: RecordedCall, line: Trajectory) -> RecordedChoice:
    return RecordedChoice(_num_tokens_before(line, recorded.turn), recorded=recorded, line=line)


def _turn_parts(line: Trajectory, turn: int) -> list[Segment]:
    """The segments of a turn, from 0."""
    found: list[list[Segment]] = [[]]
    for segment in line.segments:
        if isinstance(segment, Observed):
            found.append([])
        else:
            found[-1].append(segment)
    return found[turn]


def _num_tokens_before(line: Trajectory, turn: int) -> int:
    """Tokens in front of a turn, from 0: the prompt, earlier turns and what was observed."""
    count = len(line.prompt_tokens)
    for segment in line.segments:
        if turn == 0:
            break
        count += len(segment.tokens)
        turn -= isinstance(segment, Observed)
    return count
