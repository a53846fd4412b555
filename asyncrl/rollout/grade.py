"""Verdicts for finished trajectories: by the verifier each task names, with retries, off the event loop.

A fault stays a fault: it has no score, and no number stands in for one. One whose retry gives a verdict is
counted and kept all the same.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from asyncrl.loops import Blocker, BlockerKind, Waits
from asyncrl.model.tokenizer import TextCodec
from asyncrl.recipe import Verifying
from asyncrl.records import Finish, Score, Task, Trajectory, VerifierSpec
from asyncrl.replay.group import Group, GroupState
from asyncrl.replay.queue import ReplayQueue
from asyncrl.rollout.fault_limit import FaultWatch, VerdictWaits
from asyncrl.rollout.told_task import Conversation, conversation_in, told_task
from asyncrl.tasks.verifier_cache import VerifierCache, reference_of
from verifiers.judgement import all_faults
from verifiers.own import in_thread, is_built_in
from verifiers.pool import VerifierPool
from verifiers.storable import storable
from verifiers.verdict import Outcome, Verdict, weighted_sum
from verifiers.verifier import AnswerVerifier


def score_of(verdict: Verdict) -> Score:
    reward = None
    if verdict.score is not None:
        reward = weighted_sum([(1.0, verdict.score), (1.0, verdict.shaping)])
    return Score(
        verdict.outcome.value,
        verdict.score,
        reward,
        verdict.extracted,
        verdict.detail,
        verdict.seconds,
        verdict.method,
        verdict.trace,
        turn_rewards=verdict.turn_rewards or (),
        spans=verdict.spans,
        scores=verdict.scores,
    )


def with_fitting_credits(verdict: Verdict, response: str, num_turns: int | None) -> Verdict:
    """The verdict; a FAULT where it gives rewards to parts or turns that the response does not have.
    `num_turns`: None where it does not matter."""
    beyond = next((span for span in verdict.spans if span[1] > len(response)), None)
    given = verdict.turn_rewards
    if beyond is not None:
        detail = f"the verdict has the span {beyond}, but the response has {len(response)} characters"
    elif given and num_turns is not None and len(given) != num_turns:
        detail = f"the verdict has {len(given)} turn_rewards, but the trajectory has {num_turns} turn(s)"
    else:
        return verdict
    return Verdict(Outcome.FAULT, None, detail=detail, seconds=verdict.seconds)


@dataclass(frozen=True, slots=True)
class Answer:
    """A response of a group, for a verifier that judges the group."""

    text: str
    conversation: Callable[[], Conversation]
    """Its turns, where the verifier reads them."""
    num_turns: int | None = None


class Grader:
    """Owns the pool of verifier workers. Async context manager."""

    def __init__(
        self,
        verifying: Verifying,
        verifiers: VerifierCache,
        *,
        max_fault_retries: int,
        prints: Path | None = None,
        on_retried: Callable[[Task, Verdict], None] = lambda task, fault: None,
    ) -> None:
        """Text that verifiers print goes to the file `prints`, else to standard error. `on_retried` is called
        with each fault whose retry gave a verdict."""
        self._folder = verifiers.folder
        self._verifiers = verifiers
        self._max_fault_retries = max_fault_retries
        self._faults = FaultWatch(verifying.max_faults_in_a_row)
        self.on_verdict: Callable[[Verdict], None] = lambda verdict: None
        """Receives each verdict, those of retried faults too."""
        self.outcomes: Counter[tuple[str, str]] = Counter()
        """(verifier, outcome) -> verdicts since the start; each fault counts, retried ones too."""
        self.num_retried = 0
        """Faults whose retry gave a verdict, since the start; those within the pool too."""
        self._on_retried = on_retried
        self.waits = VerdictWaits()
        """Whoever holds the grader looks at them every few seconds."""
        self._pool = VerifierPool(
            num_workers=verifying.num_workers, timeout_seconds=verifying.timeout_seconds, prints=prints
        )

    async def __aenter__(self) -> "Grader":
        await self._pool.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pool.close()

    async def grade(
        self,
        task: Task,
        response: str,
        conversation: Callable[[], Conversation] | None = None,
        *,
        num_turns: int | None = None,
    ) -> Score:
        """The score of `response`, the last of `num_turns`; its outcome is a fault only after all retries.

        `conversation` tells the turns of a trajectory that has several, where the verifier reads them. Raises
        VerifierFailed when the verifier gives no more verdicts.
        """
        told = partial(told_task, task, response, conversation)

        async def ask() -> tuple[Sequence[Verdict], list[Verdict]]:
            verifier = task.verifier
            judged = await self._pool.judge(
                verifier.name, verifier.options, response, task.reference, folder=self._folder, task=told
            )
            return judged.faults, [with_fitting_credits(judged.verdict, response, num_turns)]

        (score,) = await self._scores(task, 1, ask)
        return score

    async def grade_group(self, task: Task, answers: Sequence[Answer]) -> list[Score]:
        """The scores of all responses of a group, at least one, by a verifier that judges them together.

        A fault of them all is tried again, as in `grade`; a fault among verdicts is that response's. Raises
        VerifierFailed."""

        async def ask() -> tuple[Sequence[Verdict], list[Verdict]]:
            judged = await self._pool.judge_group(
                task.verifier.name,
                task.verifier.options,
                [answer.text for answer in answers],
                task.reference,
                folder=self._folder,
                tasks=lambda: [told_task(task, answer.text, answer.conversation) for answer in answers],
            )
            return judged.faults, [
                with_fitting_credits(verdict, answer.text, answer.num_turns)
                for verdict, answer in zip(judged.verdicts, answers, strict=True)
            ]

        return await self._scores(task, len(answers), ask)

    async def _scores(
        self,
        task: Task,
        num_responses: int,
        ask: Callable[[], Awaitable[tuple[Sequence[Verdict], list[Verdict]]]],
    ) -> list[Score]:
        """`ask` is one attempt: faults of all responses within it, and the verdict on each at its end."""
        name = task.verifier.name
        faults: list[Verdict] = []
        verdicts: list[Verdict] = []
        with self.waits.waiting(name, num_responses):
            for _ in range(self._max_fault_retries + 1):
                # Of the attempt before.
                faults += verdicts[:1]
                earlier, verdicts = await ask()
                faults += earlier
                for verdict in verdicts:
                    self.on_verdict(verdict)
                    self.outcomes[name, verdict.outcome.value] += 1
                if not all_faults(verdicts):
                    self._faults.answered(task)
                    break
                self._faults.failed(task, verdicts[0].detail)
        for verdict in verdicts:
            if verdict.outcome is Outcome.FAULT:
                self._faults.gave_up(task, verdict.detail)
        for fault in [] if all_faults(verdicts) else faults:
            self.num_retried += 1
            self._faults.retried(task, fault.detail)
            self._on_retried(task, fault)
        return [score_of(verdict) for verdict in verdicts]

    def has_equality(self, spec: VerifierSpec) -> bool:
        """Whether the verifier says which answers are the same (`AnswerVerifier`)."""
        return isinstance(self._verifiers.get(spec), AnswerVerifier)

    async def is_same_answer(self, spec: VerifierSpec, first: str, second: str) -> bool:
        """Whether the verifier, with the answer `first` as its gold, finds `second` correct. False where it
        reads no gold in `first`, and where it fails."""
        verifier = self._verifiers.get(spec)
        assert isinstance(verifier, AnswerVerifier)
        try:
            reference = reference_of(verifier, first)
        except ValueError:
            return False
        make_response = partial(verifier.response_with, second)
        # The code of others may take its time.
        response = make_response() if is_built_in(verifier) else await in_thread(make_response)
        verdict = await self._pool.verify(spec.name, spec.options, response, reference, folder=self._folder)
        return verdict.outcome is Outcome.CORRECT

    def pool_metrics(self) -> dict[str, float]:
        """Since the start: seconds spent waiting for a worker, workers killed, verdicts that needed none; and
        requests to judges and reward models, with their tokens and seconds."""
        return {
            "verifier_queue_seconds_total": self._pool.queue_seconds,
            "verifier_killed_total": self._pool.num_killed,
            "verifier_cached_total": self._pool.num_cached,
            "verifier_fast_total": self._pool.num_fast,
            **{f"judge_{name}_total": count for name, count in self._pool.counters().items()},
        }


@dataclass(frozen=True)
class TrajectoryVerdicts:
    """Gives each trajectory a verdict of its own, once it has ended."""

    queue: ReplayQueue
    grader: Grader
    codec: TextCodec
    waits: Waits
    shaped: Callable[[Score, Trajectory, Finish | None], Score]
    """The score of a trajectory or branch that ended so, with what the recipe adds to a verdict."""

    def are_together(self, group: Group) -> bool:
        """Whether the verifier judges all responses of the group, once they are there."""
        return False

    async def judge(self, group: Group, trajectory: Trajectory) -> None:
        asked = self.answer(trajectory)
        with self.waiting(group, trajectory):
            score = await self.grader.grade(
                group.task, asked.text, asked.conversation, num_turns=asked.num_turns
            )
        if group.state is GroupState.OPEN:
            shaped = self.shaped(score, trajectory, trajectory.finish)
            self.queue.score(group, trajectory, shaped, storable(asked.text))

    async def judge_together(self, group: Group, trajectories: Sequence[Trajectory]) -> None:
        raise NotImplementedError("each trajectory is judged by itself")

    def answer(self, trajectory: Trajectory) -> Answer:
        text = self.codec.decode(trajectory.answer_tokens())
        conversation = partial(conversation_in, trajectory, self.codec)
        return Answer(text, conversation, len(trajectory.turn_lengths()))

    def waiting(self, group: Group, trajectory: Trajectory) -> AbstractContextManager[None]:
        verdict = Blocker(BlockerKind.VERDICT, group.task.verifier.name)
        return self.waits.waiting(f"trajectory {trajectory.trajectory_id}", verdict)
