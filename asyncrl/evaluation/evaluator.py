"""Evaluation on the serving fleet: asks tasks, greedily or k times, and grades what comes back. Responses are
generated, turns answered and agents played as in rollouts, with a record in memory.

Runs during training without stopping it; each response says which policy versions wrote it. What the
responses amount to is result.py's.
"""

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from asyncrl.errors import ServerError
from asyncrl.evaluation.kept_answers import KeptAnswers, Slot
from asyncrl.evaluation.result import (
    EvaluationFailed,
    GradedResponse,
    Result,
    Scores,
    chance_scores,
    greedy_result,
    numbers_by_part,
    numbers_by_source,
    sampled_result,
)
from asyncrl.journal.kept_answers import KeptAnswer
from asyncrl.loops import RunPhase, Waits
from asyncrl.model.tokenizer import TextCodec
from asyncrl.observe.metrics.turn_metrics import num_calls
from asyncrl.recipe import Algorithm
from asyncrl.records import Finish, SamplingParams, Task, Trajectory
from asyncrl.replay.branches import Unrecorded
from asyncrl.replay.group import Group, trajectory_id
from asyncrl.rollout.agents.kit import AgentKit
from asyncrl.rollout.credits import Shaping
from asyncrl.rollout.expected_load import ResponseLengths
from asyncrl.rollout.generate import Generator
from asyncrl.rollout.grade import Grader
from asyncrl.rollout.request_rules import MAX_RETRIES, UNTRAINED, Limits, OpenTurns
from asyncrl.rollout.told_task import conversation_in
from asyncrl.rollout.turn_player import TurnPlayer
from asyncrl.serving.fleet import Fleet, Gate
from asyncrl.turns.conversation import Conversations

PROMPTS_PER_REQUEST = 32
Play = Callable[[Group], AsyncIterator[Trajectory]]
"""As `Generator.run`."""


class Asked(Group):
    """Samples that are asked for in one request: some of one turn, or one with turns."""

    @property
    def title(self) -> str:
        others = len(self.trajectories) - 1
        return f"the evaluation of {self.task.task_id}{f' and {others} more' if others else ''}"


class EvaluatedAgents:
    """The agents of all evaluations of a run, or of one `asyncrl eval`: agent.max_agents programs at once in
    all, besides those of rollouts."""

    def __init__(self, kit: AgentKit) -> None:
        self.kit = kit
        self.places = asyncio.Semaphore(kit.section.max_agents)


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
    on_graded: Callable[[int], None] = lambda num_responses: None
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

    def on(self, fleet: Fleet, waits: Waits, opponents: Mapping[str, Fleet]) -> "Evaluator":
        """The same on other servers."""
        agents = self.agents
        if agents is not None:
            agents = EvaluatedAgents(replace(agents.kit, opponents=opponents))
        return replace(self, fleet=fleet, waits=waits, agents=agents)

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
        divided = numbers_by_source(tasks, answers, samples, num_samples) | numbers_by_part(answers, samples)
        return Result(greedy, sampled, scores, answers, samples, divided)

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
        size = 1 if self._has_turns() else PROMPTS_PER_REQUEST
        parts = [[slots[i] for i in wanted[first : first + size]] for first in range(0, len(wanted), size)]
        failure: Exception | None = None
        try:
            async with self._playing(size) as play, asyncio.TaskGroup() as requests:
                running = [
                    requests.create_task(self._answer(play, self._asked(part, is_greedy), part))
                    for part in parts
                ]
                requests.create_task(self._fail_without_server(running))
        except* (ServerError, EvaluationFailed) as errors:
            failure = _first(errors)
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

    def _has_turns(self) -> bool:
        return self.conversations is not None or self.agents is not None

    async def _kept(self, slots: Sequence[Slot]) -> dict[int, GradedResponse]:
        """Index of a slot -> its response, where its answer is kept; graded where the verdict is not."""
        if self.kept is None or not all(slot.key for slot in slots):
            return {}

        async def grade(asked: list[Slot], answers: list[KeptAnswer]) -> list[GradedResponse]:
            async with asyncio.TaskGroup() as verdicts:
                running = [
                    verdicts.create_task(
                        self._grade(slot.task, kept.tokens, (0,) if kept.tokens else (), kept.is_cut)
                    )
                    for slot, kept in zip(asked, answers, strict=True)
                ]
            return self._keep_verdicts(asked, [verdict.result() for verdict in running])

        return await self.kept.responses(slots, self.codec.decode, grade, self.on_graded)

    @contextlib.asynccontextmanager
    async def _playing(self, size: int) -> AsyncIterator[Play]:
        """The way to have groups of `size` responses made, while the block lasts."""
        # Of its own: evaluations are made while a run ends, too.
        state = RunPhase(self.waits)
        generator = Generator(
            Unrecorded(self._streamed),
            self.fleet,
            self.waits,
            Limits(self.sampling, self.context_tokens, self.max_turn_tokens, stop=self.codec.stop),
            MAX_RETRIES,
            f"{self.run_id}-eval",
            state=state,
            rules=UNTRAINED,
            turns=OpenTurns() if self._has_turns() else None,
            # A drain waits for the requests that stream, and for no further one.
            is_parked=lambda: self.fleet.router.gate is not Gate.OPEN,
        )
        generator.load.lengths = self.lengths
        shaping = Shaping(Algorithm(), generator.limits)
        if self.agents is not None:
            parts = (generator, self.codec, shaping, self.waits, state)
            agents = self.agents.kit.agents(*parts, places=self.agents.places)
            async with agents:
                with self._working(agents.player.is_answering_in_time):
                    yield agents.player.run
        elif self.conversations is not None:
            player = TurnPlayer(generator.queue, generator, self.conversations, shaping, self.waits)
            with self._working(player.is_answering_in_time):
                yield player.run
        else:
            capacity = self.fleet.router.max_running_requests * len(self.fleet.members.servers)
            yield partial(_in_turn, asyncio.Semaphore(max(1, capacity // size)), generator.run)

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
            blocker="its responses",
        )
        if not all(task.done() for task in running):
            raise EvaluationFailed(f"no server is left to answer: {self.fleet.members.reasons()}")

    def _asked(self, slots: Sequence[Slot], is_greedy: bool) -> Asked:
        number = next(self.counter)
        trajectories = [
            Trajectory(trajectory_id(number, place), slot.task.prompt_tokens, is_greedy=is_greedy)
            for place, slot in enumerate(slots)
        ]
        return Asked(number, slots[0].task, 0, trajectories)

    async def _answer(self, play: Play, group: Asked, slots: Sequence[Slot]) -> list[GradedResponse]:
        """The responses of `group`, one for each slot, each graded as soon as it is there."""
        task_of = {t.trajectory_id: slot.task for t, slot in zip(group.trajectories, slots, strict=True)}
        running: dict[str, asyncio.Task[GradedResponse]] = {}
        async with asyncio.TaskGroup() as verdicts:
            async for trajectory in play(group):
                name = trajectory.trajectory_id
                running[name] = verdicts.create_task(self._graded(group, trajectory, task_of[name]))
            if self.kept is not None and all(slot.key for slot in slots):
                self.kept.add(
                    (slot, KeptAnswer(t.response_tokens(), t.finish is Finish.LENGTH))
                    for slot, t in zip(slots, group.trajectories, strict=True)
                )
        graded = [running[trajectory.trajectory_id].result() for trajectory in group.trajectories]
        return self._keep_verdicts(slots, graded)

    def _keep_verdicts(self, slots: Sequence[Slot], graded: list[GradedResponse]) -> list[GradedResponse]:
        if self.kept is not None:
            self.kept.grade((slot, r.text, r.score) for slot, r in zip(slots, graded, strict=True))
        return graded

    async def _graded(self, group: Asked, trajectory: Trajectory, task: Task) -> GradedResponse:
        versions = tuple(part.version for line in trajectory.lines() for part in line.sampled())
        is_cut = trajectory.finish is Finish.LENGTH
        if not self._has_turns():
            return await self._grade(task, trajectory.response_tokens(), versions, is_cut)
        score = group.scores.get(trajectory.trajectory_id)
        if score is None:
            text = self.codec.decode(trajectory.answer_tokens())
            told = partial(conversation_in, trajectory, self.codec)
            with self.waits.waiting(group.title, f'a verdict by "{task.verifier.name}"'):
                score = await self.grader.grade(task, text, told, num_turns=len(trajectory.turn_lengths()))
        self.on_graded(1)
        return GradedResponse(
            self.codec.exact_text(self._shown(trajectory)),
            trajectory.num_sampled_in_all(),
            versions,
            score,
            is_cut,
            num_turns=len(trajectory.turn_lengths()),
            num_calls=None if self.agents is not None else num_calls(trajectory),
        )

    async def _grade(
        self, task: Task, tokens: Sequence[int], versions: tuple[int, ...], is_cut: bool
    ) -> GradedResponse:
        text = self.codec.decode(tokens)
        whole = task.prompt + text if self.is_completion else text
        with self.waits.waiting("evaluation", f'a verdict by "{task.verifier.name}"'):
            score = await self.grader.grade(task, whole, num_turns=1 if tokens else 0)
        self.on_graded(1)
        return GradedResponse(text, len(tokens), versions, score, is_cut)

    def _shown(self, trajectory: Trajectory) -> list[int]:
        """For people: the conversation as it was sampled, or the one that an agent's last call continued."""
        if self.conversations is None:
            last = trajectory.last_call()
            return (trajectory if last is None else trajectory.branch(last.branch)).response_tokens()
        tokens = trajectory.response_tokens()
        for before, line in itertools.pairwise(trajectory.lines()):
            turn, answered = before.turns()[-2], before.answers()[-1]
            messages = json.loads(answered.notes)["messages"]
            tokens += [*self.conversations.dialogue.answer(turn, messages), *line.response_tokens()]
        return tokens


async def _in_turn(places: asyncio.Semaphore, play: Play, group: Group) -> AsyncIterator[Trajectory]:
    async with places:
        async for trajectory in play(group):
            yield trajectory


def _first(errors: BaseExceptionGroup[Any]) -> Exception:
    """The first error that is no group of errors."""
    first = errors.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
