"""Held-out evaluation on the serving fleet: greedy accuracy, avg@k and pass@k, each with a 95% interval.

Runs during training without stopping it; the result says which policy versions answered. A fault leaves the
evaluation and is counted: it is neither right nor wrong.
"""

import asyncio
import itertools
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

from asyncrl.errors import AsyncrlError, ServerError
from asyncrl.observe import estimates
from asyncrl.records import PolicyVersion, SamplingParams, Score, Task
from asyncrl.rollout.grade import Grader
from asyncrl.rollout.text import TextCodec
from asyncrl.serving import sglang
from asyncrl.serving.confirmation import Confirmation
from asyncrl.serving.fleet import Fleet, Gate
from asyncrl.serving.server import Server
from asyncrl.serving.sglang_messages import End, Prefix, generate_body
from asyncrl.waits import Waits

log = logging.getLogger(__name__)

PROMPTS_PER_REQUEST = 32
MAX_ATTEMPTS = 3


class EvaluationFailed(AsyncrlError):
    """No result: servers kept failing, or no response got a verdict."""


class Greedy(TypedDict):
    """Of the most likely answer to each task."""

    greedy_accuracy: float
    greedy_low: float
    """Ends of the 95% Wilson interval."""
    greedy_high: float
    response_tokens_mean: float
    num_tasks: int
    num_faults: int
    version_min: PolicyVersion
    """Of the versions that answered; -1 when no answer has a token."""
    version_max: PolicyVersion


class Sampled(TypedDict):
    """Of k samples per task, with 95% intervals over tasks."""

    k: int
    avg_at_k: float
    avg_low: float
    avg_high: float
    pass_at_k: float
    pass_low: float
    pass_high: float


@dataclass(frozen=True, slots=True)
class Answer:
    """One graded response to a held-out task."""

    text: str
    num_tokens: int
    versions: tuple[PolicyVersion, ...]
    score: Score


@dataclass
class Evaluator:
    fleet: Fleet
    waits: Waits
    grader: Grader
    codec: TextCodec
    sampling: SamplingParams
    context_tokens: int
    silence_seconds: float
    run_id: str
    counter: "itertools.count[int]"
    """Of request ids, shared by the evaluations of a run."""
    num_streamed: int = 0
    """Tokens so far, also of requests that broke off."""

    async def greedy(self, tasks: Sequence[Task]) -> Greedy:
        """Raises EvaluationFailed."""
        answers = [a for group in await self._answer(tasks, num_samples=1, is_greedy=True) for a in group]
        graded = [a for a in answers if a.score.correctness is not None]
        num_correct = sum(a.score.correctness == 1.0 for a in graded)
        accuracy = estimates.accuracy(num_correct, len(graded))
        versions = [version for answer in answers for version in answer.versions]
        return {
            "greedy_accuracy": accuracy.mean,
            "greedy_low": accuracy.low,
            "greedy_high": accuracy.high,
            "response_tokens_mean": sum(a.num_tokens for a in answers) / len(answers),
            "num_tasks": len(answers),
            "num_faults": len(answers) - len(graded),
            "version_min": min(versions, default=-1),
            "version_max": max(versions, default=-1),
        }

    async def sampled(self, tasks: Sequence[Task], *, num_samples: int) -> Sampled:
        """avg@k and pass@k over `num_samples` per task. Raises EvaluationFailed."""
        groups = await self._answer(tasks, num_samples=num_samples, is_greedy=False)
        correct = [_correct(group) for group in groups]
        if not any(len(graded) >= num_samples for graded in correct):
            raise EvaluationFailed(f"none of {len(tasks)} tasks got {num_samples} verdicts")
        average = estimates.avg_at_k(correct)
        passed = estimates.pass_at_k(correct, num_samples)
        return {
            "k": num_samples,
            "avg_at_k": average.mean,
            "avg_low": average.low,
            "avg_high": average.high,
            "pass_at_k": passed.mean,
            "pass_low": passed.low,
            "pass_high": passed.high,
        }

    async def _answer(
        self, tasks: Sequence[Task], *, num_samples: int, is_greedy: bool
    ) -> list[list[Answer]]:
        """For each task its answers; requests go out together and spread over the servers."""
        wanted = [(task, sample) for task in tasks for sample in range(num_samples)]
        parts = [wanted[i : i + PROMPTS_PER_REQUEST] for i in range(0, len(wanted), PROMPTS_PER_REQUEST)]
        try:
            async with asyncio.TaskGroup() as requests:
                running = [
                    requests.create_task(self._ask_with_retries([task for task, _ in part], is_greedy))
                    for part in parts
                ]
        except* ServerError as errors:
            raise EvaluationFailed(str(errors.exceptions[0])) from errors
        answers = [answer for request in running for answer in request.result()]
        if all(answer.score.correctness is None for answer in answers):
            raise EvaluationFailed(
                f"All {len(answers)} verifications of the evaluation ended in a fault, such as: "
                f"{answers[0].score.detail} See verifying.* in the recipe, or try `asyncrl verify`."
            )
        return [answers[i * num_samples : (i + 1) * num_samples] for i in range(len(tasks))]

    async def _ask_with_retries(self, tasks: list[Task], is_greedy: bool) -> list[Answer]:
        for attempt in itertools.count(1):
            await self.waits.wait_until(
                lambda: bool(self.fleet.serving()) and self.fleet.gate is Gate.OPEN,
                owner="evaluation",
                blocker="a serving server, with no publish under way",
            )
            server = min(self.fleet.serving(), key=lambda s: s.num_running)
            try:
                return await self._ask(server, tasks, is_greedy)
            except ServerError as error:
                log.warning("evaluation: %s", error)
                await self.fleet.suspect(server, error)
                if attempt >= MAX_ATTEMPTS:
                    raise
        raise AssertionError("unreachable")

    async def _ask(self, server: Server, tasks: list[Task], is_greedy: bool) -> list[Answer]:
        assert server.version is not None
        ids = [f"{self.run_id}-eval-{next(self.counter):010d}" for _ in tasks]
        prefixes = [self._prefix(name, task) for name, task in zip(ids, tasks, strict=True)]
        salt = f"{self.run_id}-{self.fleet.salt(server)}"
        body = generate_body(prefixes, self.sampling, salt=salt, is_greedy=is_greedy)
        confirmations = {name: Confirmation(server.version) for name in ids}
        tokens: dict[str, list[int]] = {name: [] for name in ids}
        versions: dict[str, list[PolicyVersion]] = {name: [] for name in ids}
        self.fleet.acquire(server, len(tasks))
        try:
            with self.waits.waiting("evaluation", f"tokens from {server.url}"):
                async for chunk in sglang.stream(
                    self.fleet.session, server.url, body, silence_seconds=self.silence_seconds
                ):
                    if chunk.end is End.ABORT:
                        raise ServerError(f"{server.url} aborted request {chunk.request_id}")
                    self.num_streamed += len(chunk.tokens)
                    for segment in confirmations[chunk.request_id].feed(chunk):
                        tokens[chunk.request_id].extend(segment.tokens)
                        versions[chunk.request_id].append(segment.version)
        finally:
            self.fleet.release(server, len(tasks))
        with self.waits.waiting("evaluation", f"{len(tasks)} verdicts"):
            async with asyncio.TaskGroup() as verdicts:
                graded = [
                    verdicts.create_task(self._grade(task, tokens[name], versions[name]))
                    for name, task in zip(ids, tasks, strict=True)
                ]
        return [verdict.result() for verdict in graded]

    async def _grade(self, task: Task, tokens: list[int], versions: list[PolicyVersion]) -> Answer:
        text = self.codec.decode(tokens)
        return Answer(text, len(tokens), tuple(versions), await self.grader.grade(task, text))

    def _prefix(self, request_id: str, task: Task) -> Prefix:
        room = self.context_tokens - len(task.prompt_tokens)
        return Prefix(request_id, list(task.prompt_tokens), min(self.sampling.max_new_tokens, room))


def _correct(answers: Sequence[Answer]) -> list[bool]:
    return [a.score.correctness == 1.0 for a in answers if a.score.correctness is not None]
