"""Evaluation on the serving fleet: asks tasks, greedily or k times, and grades what comes back. Turns are
answered, and agents play, as in rollouts.

Runs during training without stopping it; each response says which policy versions wrote it. What the
responses amount to is result.py's.
"""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from asyncrl.errors import ServerError
from asyncrl.evaluation.agents import EvaluatedAgents, answer_line, play
from asyncrl.evaluation.by_source import numbers_by_source
from asyncrl.evaluation.kept_answers import KeptAnswers, Slot
from asyncrl.evaluation.result import (
    EvaluationFailed,
    GradedResponse,
    Result,
    Scores,
    chance_scores,
    greedy_result,
    sampled_result,
)
from asyncrl.journal.kept_answers import KeptAnswer
from asyncrl.loops.waits import Waits, now_seconds
from asyncrl.model.stop import cut
from asyncrl.model.tokenizer import TextCodec
from asyncrl.records import Finish, Observed, PolicyVersion, SamplingParams, Task
from asyncrl.rollout.agents.player import AgentPlayer
from asyncrl.rollout.grade import Grader, score_of
from asyncrl.rollout.response_lengths import ResponseLengths
from asyncrl.rollout.told_task import conversation_in, conversation_of
from asyncrl.serving.confirmation import Confirmation
from asyncrl.serving.fleet import Fleet
from asyncrl.serving.router import Gate
from asyncrl.serving.server import Server
from asyncrl.serving.sglang import control
from asyncrl.serving.sglang.messages import Chunk, Prefix, StreamEnd, generate_body
from asyncrl.serving.sglang.stream import stream
from asyncrl.turns.conversation import Branched, Conversations, Ended

log = logging.getLogger(__name__)

PROMPTS_PER_REQUEST = 32
MAX_ATTEMPTS = 3
Ask = Callable[[list[Slot]], Coroutine[Any, Any, list[GradedResponse]]]
"""A response for each slot."""


def _nothing(num_responses: int) -> None:
    """Reports nothing: the default of `on_graded`."""


@dataclass(slots=True)
class _Sampled:
    """A response, or a turn."""

    tokens: list[int] = field(default_factory=list)
    versions: list[PolicyVersion] = field(default_factory=list)
    is_cut: bool = False


@dataclass
class Evaluator:
    fleet: Fleet
    waits: Waits
    grader: Grader
    codec: TextCodec
    sampling: SamplingParams
    context_tokens: int
    run_id: str
    counter: "itertools.count[int]"
    """Counter of request ids, shared by the evaluations of a run."""
    num_streamed: int = 0
    """Tokens so far, also of requests that broke off."""
    is_completion: bool = False
    """The prompt and its response are graded together."""
    on_graded: Callable[[int], None] = _nothing
    """Receives how many more responses are graded."""
    lengths: ResponseLengths = field(default_factory=ResponseLengths)
    conversations: Conversations | None = None
    """Answer the turns of a response; None where it has one turn."""
    max_turn_tokens: int | None = None
    """Most sampled tokens of a turn."""
    agents: EvaluatedAgents | None = None
    """Make the samples; None where the recipe has no agent."""
    answering: dict[object, Callable[[], bool]] = field(default_factory=dict)
    """Tools, environments and agents at work, each with whether it has time left."""
    kept: KeptAnswers | None = None
    """Answers that are not asked for again, and where new ones are kept: those of one turn."""

    async def evaluate(self, tasks: Sequence[Task], *, is_greedy: bool, num_samples: int) -> Result:
        """The most likely answers if `is_greedy`, and `num_samples` per task if above 0.

        Raises EvaluationFailed.
        """
        sampled = greedy = None
        samples: list[list[GradedResponse]] = []
        answers: list[list[GradedResponse]] = []
        scores: dict[str, Scores] = {}
        if num_samples:
            samples = await self.answer(tasks, num_samples=num_samples, is_greedy=False)
            sampled = sampled_result(samples, num_samples)
            scores |= {"avg": chance_scores(samples, 1), "pass": chance_scores(samples, num_samples)}
        if is_greedy:
            answers = await self.answer(tasks, num_samples=1, is_greedy=True)
            greedy, scores["greedy"] = greedy_result(answers), chance_scores(answers, 1)
        by_source = numbers_by_source(tasks, answers, samples, num_samples)
        return Result(greedy, sampled, scores, answers, samples, by_source)

    def is_answering_in_time(self) -> bool:
        """Whether a tool, an environment or an agent is at work that its limits still allow."""
        return any(has_time() for has_time in list(self.answering.values()))

    async def answer(
        self, tasks: Sequence[Task], *, num_samples: int, is_greedy: bool
    ) -> list[list[GradedResponse]]:
        """For each task its graded responses. Raises EvaluationFailed.

        Requests spread over the servers, and only as many go out at once as these can run: the next goes to
        the server that has room first.
        """
        slots = self.slots(tasks, num_samples=num_samples, is_greedy=is_greedy)
        found = await self._kept(slots)
        wanted = [index for index in range(len(slots)) if index not in found]
        size = PROMPTS_PER_REQUEST if self.conversations is None and self.agents is None else 1
        parts = [[slots[i] for i in wanted[first : first + size]] for first in range(0, len(wanted), size)]
        failure: Exception | None = None
        try:
            async with self._asking(size, is_greedy) as ask, asyncio.TaskGroup() as requests:
                running = [requests.create_task(ask(part)) for part in parts]
                if self.agents is not None:
                    requests.create_task(self._fail_without_server(running))
        except* (ServerError, EvaluationFailed) as errors:
            failure = errors.exceptions[0]
        # Not raised above: what an `except*` raises arrives in a group.
        if failure is not None:
            raise EvaluationFailed(str(failure)) from failure
        new = [answer for request in running for answer in request.result()]
        found |= dict(zip(wanted, new, strict=True))
        answers = [found[index] for index in range(len(slots))]
        if all(answer.score.correctness is None for answer in answers):
            raise EvaluationFailed(
                f"All {len(answers)} verifications of the evaluation ended in a fault, such as: "
                f"{answers[0].score.detail} See verifying.* in the recipe, or try `asyncrl verify`."
            )
        return [answers[i * num_samples : (i + 1) * num_samples] for i in range(len(tasks))]

    def slots(self, tasks: Sequence[Task], *, num_samples: int, is_greedy: bool) -> list[Slot]:
        """The responses that are asked for, task after task."""
        if self.kept is None or self.conversations is not None or self.agents is not None:
            return [Slot(task, sample) for task in tasks for sample in range(num_samples)]
        return self.kept.slots(
            *(tasks, num_samples, self.sampling, self.codec.stop),
            is_greedy=is_greedy,
            is_completion=self.is_completion,
            context_tokens=self.context_tokens,
        )

    async def _kept(self, slots: Sequence[Slot]) -> dict[int, GradedResponse]:
        """Index of a slot -> its response, where its answer is kept; graded where the verdict is not."""
        if self.kept is None or not all(slot.key for slot in slots):
            return {}

        async def grade(asked: list[Slot], answers: list[KeptAnswer]) -> list[GradedResponse]:
            sampled = [_Sampled(a.tokens, [0] if a.tokens else [], a.is_cut) for a in answers]
            return await self._grade_all(asked, sampled)

        return await self.kept.responses(slots, self.codec.decode, grade, self.on_graded)

    @contextlib.asynccontextmanager
    async def _asking(self, size: int, is_greedy: bool) -> AsyncIterator[Ask]:
        """The way to ask for `size` responses at once, while the block lasts."""
        if self.agents is None:
            places = asyncio.Semaphore(self._num_requests(size))
            ask = self._ask_in_turn if self.conversations is None else self._converse_in_turn
            yield lambda slots: ask(places, slots, is_greedy)
            return
        numbers = itertools.count()
        async with self.agents.playing(
            self.fleet,
            self.waits,
            self.codec,
            self.sampling,
            self.context_tokens,
            name=f"{self.run_id}-eval-{next(self.counter):010d}",
            streamed=self._streamed,
        ) as player:
            with self._working(player.is_answering_in_time):
                yield lambda slots: self._play_in_turn(player, slots, is_greedy, numbers)

    @contextlib.contextmanager
    def _working(self, has_time: Callable[[], bool]) -> Iterator[None]:
        key = object()
        self.answering[key] = has_time
        try:
            yield
        finally:
            del self.answering[key]

    def _streamed(self, num_tokens: int) -> None:
        self.num_streamed += num_tokens

    async def _fail_without_server(self, running: Sequence["asyncio.Task[Any]"]) -> None:
        """Raises EvaluationFailed where some of `running` wait for a server and none may come back."""
        for task in running:
            task.add_done_callback(lambda _: self.waits.notify())
        await self.waits.wait_until(
            lambda: all(task.done() for task in running) or not self.fleet.members.has_hope(),
            owner="evaluation",
            blocker="its agents",
        )
        if not all(task.done() for task in running):
            raise self._without_server()

    def _without_server(self) -> EvaluationFailed:
        reasons = "; ".join(server.reason for server in self.fleet.members.servers.values())
        return EvaluationFailed(f"no server is left to answer: {reasons}")

    def _num_requests(self, size: int) -> int:
        """Requests at once; one at least."""
        capacity = self.fleet.router.max_running_requests * len(self.fleet.members.servers)
        return max(1, capacity // size)

    async def _ask_in_turn(
        self, places: asyncio.Semaphore, slots: list[Slot], is_greedy: bool
    ) -> list[GradedResponse]:
        limit = self.sampling.max_new_tokens
        prefixes = [self._prefix(slot.task.prompt_tokens, limit) for slot in slots]
        async with places:
            responses = await self._sample_with_retries(prefixes, is_greedy)
        if self.kept is not None and all(slot.key for slot in slots):
            pairs = zip(slots, responses, strict=True)
            self.kept.add((slot, KeptAnswer(answer.tokens, answer.is_cut)) for slot, answer in pairs)
        return await self._grade_all(slots, responses)

    async def _grade_all(self, slots: list[Slot], responses: list[_Sampled]) -> list[GradedResponse]:
        names = ", ".join(sorted({f'"{slot.task.verifier.name}"' for slot in slots}))
        with self.waits.waiting("evaluation", f"{len(slots)} verdicts by {names}"):
            async with asyncio.TaskGroup() as verdicts:
                running = [
                    verdicts.create_task(self._grade(slot.task, response))
                    for slot, response in zip(slots, responses, strict=True)
                ]
        graded = [verdict.result() for verdict in running]
        if self.kept is not None:
            self.kept.grade((slot, r.text, r.score) for slot, r in zip(slots, graded, strict=True))
        return graded

    async def _converse_in_turn(
        self, places: asyncio.Semaphore, slots: list[Slot], is_greedy: bool
    ) -> list[GradedResponse]:
        return [await self._converse(places, slot.task, is_greedy) for slot in slots]

    async def _converse(self, places: asyncio.Semaphore, task: Task, is_greedy: bool) -> GradedResponse:
        """Turns and their answers, until the conversation is over. No place is held while a tool works."""
        assert self.conversations is not None
        whole, answer, versions, num_sampled = list[int](), list[int](), list[PolicyVersion](), 0
        context = list(task.prompt_tokens)
        turns, observed = list[list[int]](), list[Observed]()
        ended: Ended | Observed | Branched | None = None
        open_conversation = self.conversations.open
        async with open_conversation(task.environment, task.row, opening=task.messages) as conversation:
            while not isinstance(ended, Ended):
                limit = self.sampling.max_new_tokens - num_sampled
                limit = min(limit, self.max_turn_tokens or limit)
                prefix = self._prefix(context, limit)
                if prefix.max_new_tokens <= 0:
                    ended = Ended(Finish.LENGTH)
                    break
                async with places:
                    (turn,) = await self._sample_with_retries([prefix], is_greedy)
                whole, answer = whole + turn.tokens, turn.tokens or answer
                turns.append(turn.tokens)
                versions, num_sampled = versions + turn.versions, num_sampled + len(turn.tokens)
                finish = Finish.LENGTH if turn.is_cut else Finish.STOP
                until = now_seconds() + 2 * self.conversations.limits.max_tool_seconds
                what = f"an answer to a turn by {conversation.answerer()}"
                with (
                    self.waits.waiting("evaluation", what),
                    self._working(lambda until=until: now_seconds() < until),  # type: ignore[misc]
                ):
                    ended = await conversation.answer(turn.tokens, finish)
                if isinstance(ended, Observed):
                    whole += ended.tokens
                    context += [*turn.tokens, *ended.tokens]
                    observed.append(ended)
                elif isinstance(ended, Branched):
                    whole, context = whole + ended.shown, ended.context
                    observed.append(ended.observed)
        is_cut = ended.finish is Finish.LENGTH
        if ended.verdict is None:
            told = partial(conversation_of, turns, observed, self.codec)
            num_turns = sum(bool(turn) for turn in turns)
            score = await self.grader.grade(task, self.codec.decode(answer), told, num_turns=num_turns)
        else:
            score = score_of(ended.verdict)
        self.on_graded(1)
        return GradedResponse(
            self.codec.exact_text(whole),
            num_sampled,
            tuple(versions),
            score,
            is_cut,
            num_turns=len(turns),
            num_calls=conversation.num_calls(),
        )

    async def _play_in_turn(
        self, player: AgentPlayer, slots: list[Slot], is_greedy: bool, numbers: Iterator[int]
    ) -> list[GradedResponse]:
        return [await self._play(player, slot.task, is_greedy, next(numbers)) for slot in slots]

    async def _play(self, player: AgentPlayer, task: Task, is_greedy: bool, number: int) -> GradedResponse:
        trajectory, score = await play(player, task, number, is_greedy=is_greedy)
        if score is None:
            answer = self.codec.decode(trajectory.answer_tokens())
            told = partial(conversation_in, trajectory, self.codec)
            num_turns = len(trajectory.turn_lengths())
            with self.waits.waiting("evaluation", f'a verdict by "{task.verifier.name}"'):
                score = await self.grader.grade(task, answer, told, num_turns=num_turns)
        self.on_graded(1)
        lines = trajectory.lines()
        return GradedResponse(
            self.codec.exact_text(answer_line(trajectory).response_tokens()),
            trajectory.num_sampled_in_all(),
            tuple(segment.version for line in lines for segment in line.sampled()),
            score,
            trajectory.finish is Finish.LENGTH,
            num_turns=len(trajectory.turn_lengths()),
            num_calls=None,
        )

    async def _sample_with_retries(self, prefixes: list[Prefix], is_greedy: bool) -> list[_Sampled]:
        for attempt in itertools.count(1):
            await self.waits.wait_until(
                lambda: self._may_ask() or not self.fleet.members.has_hope(),
                owner="evaluation",
                blocker="a serving server, with no publish under way",
            )
            if not self._may_ask():
                raise self._without_server()
            server = min(self.fleet.members.serving(), key=self.fleet.router.load)
            try:
                return await self._sample(server, prefixes, is_greedy)
            except ServerError as error:
                # A server that leaves is told once, by the fleet, however many streams broke with it.
                log.info("evaluation: %s", error)
                await self.fleet.members.suspect(server, error)
                if attempt >= MAX_ATTEMPTS:
                    raise
        raise AssertionError("unreachable")

    def _may_ask(self) -> bool:
        return bool(self.fleet.members.serving()) and self.fleet.router.gate is Gate.OPEN

    async def _sample(self, server: Server, prefixes: list[Prefix], is_greedy: bool) -> list[_Sampled]:
        assert server.version is not None
        # Of their own per attempt: the server may still know of those that broke off.
        ids = [f"{self.run_id}-eval-{next(self.counter):010d}" for _ in prefixes]
        prefixes = [replace(prefix, request_id=name) for name, prefix in zip(ids, prefixes, strict=True)]
        salt = f"{self.run_id}-{self.fleet.router.salt(server)}"
        body = generate_body(prefixes, self.sampling, salt=salt, is_greedy=is_greedy)
        confirmations = {name: Confirmation(server.version) for name in ids}
        searches = {name: self.codec.stop.search() for name in ids}
        found = {name: _Sampled() for name in ids}
        expected = sum(map(self._expected_tokens, prefixes))
        self.fleet.router.acquire(server, len(prefixes))
        server.expect(expected, held=0)
        try:
            async with server.heartbeat.streaming():
                async for chunk in self._chunks(server, body):
                    name, search = chunk.request_id, searches[chunk.request_id]
                    if chunk.end is StreamEnd.ABORT and search.end is None:
                        raise ServerError(f"{server.url} aborted request {name}")
                    self.num_streamed += len(chunk.tokens)
                    has_stopped = search.feed(chunk.tokens)
                    if chunk.end is not None and search.end is None:
                        found[name].is_cut = chunk.end.finish() is Finish.LENGTH
                    segments = confirmations[name].feed(chunk)
                    if search.end is not None:
                        segments = cut(segments, search.end - len(found[name].tokens))
                    for segment in segments:
                        found[name].tokens.extend(segment.tokens)
                        found[name].versions.append(segment.version)
                    if has_stopped and chunk.end is None:
                        await control.abort(self.fleet.session, server.url, name)
        finally:
            server.expect(-expected, held=0)
            self.fleet.router.release(server, len(prefixes))
        return list(found.values())

    async def _chunks(self, server: Server, body: dict[str, object]) -> AsyncIterator[Chunk]:
        with self.waits.waiting("evaluation", f"tokens from {server.url}"):
            async for chunk in stream(self.fleet.session, server.url, body):
                server.heartbeat.beat()
                yield chunk

    async def _grade(self, task: Task, response: _Sampled) -> GradedResponse:
        tokens, text = response.tokens, self.codec.decode(response.tokens)
        whole = task.prompt + text if self.is_completion else text
        score = await self.grader.grade(task, whole, num_turns=1 if tokens else 0)
        self.on_graded(1)
        self.lengths.add(len(tokens))
        return GradedResponse(text, len(tokens), tuple(response.versions), score, response.is_cut)

    def _expected_tokens(self, prefix: Prefix) -> int:
        """Cache tokens that a request is expected to hold."""
        return len(prefix.tokens) + self.lengths.expected(0, limit_tokens=prefix.max_new_tokens)

    def _prefix(self, tokens: Sequence[int], limit: int) -> Prefix:
        """Without the id of a request, which is new for each attempt."""
        return Prefix("", list(tokens), min(limit, self.context_tokens - len(tokens)))
