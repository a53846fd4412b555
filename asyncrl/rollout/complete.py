"""From an open group to a ready one: generation, a verdict per trajectory as it ends, and the teacher's
log-probs beside it where there is a teacher; then advantages."""

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from asyncrl.algorithms.advantages import Advantage
from asyncrl.loops.waits import Blocker, BlockerKind, Waits
from asyncrl.model.tokenizer import TextCodec
from asyncrl.recipe import Algorithm
from asyncrl.records import DropReason, Score, Task, Trajectory
from asyncrl.replay.group import Group, GroupState
from asyncrl.replay.queue import ReplayQueue
from asyncrl.rollout.credits import credits_of, joint_score, judged_lines
from asyncrl.rollout.filter import AdaptiveGroups, SignalFilter, naming
from asyncrl.rollout.generate import GenerationFailed
from asyncrl.rollout.grade import Answer, Grader
from asyncrl.rollout.group_advantages import Worth, worths_of
from asyncrl.rollout.shaping import Shaping
from asyncrl.rollout.teacher import Teacher
from asyncrl.rollout.told_task import conversation_in
from verifiers.storable import storable

log = logging.getLogger(__name__)

UNJUDGED = "unjudged"
"""Outcome of a response that no verifier was asked about: a teacher alone says what it is worth."""


class Rollouts(Protocol):
    """The `Generator`, or the `TurnPlayer` on top of it."""

    def run(self, group: Group) -> AsyncIterator[Trajectory]:
        """Each trajectory of `group` as it ends. Raises GenerationFailed."""
        ...


@dataclass(frozen=True)
class GroupCompletion:
    """The rollout loop's body."""

    queue: ReplayQueue
    rollouts: Rollouts
    shaping: Shaping
    grader: Grader
    codec: TextCodec
    advantage: Advantage
    algorithm: Algorithm
    waits: Waits
    filter: SignalFilter
    judges_branches: bool = False
    """Whether each branch of an agent has a verdict of its own (agent.verdict)."""
    revised: Callable[[Trajectory, Worth], Worth] = lambda trajectory, worth: worth
    """From the worth of a trajectory to the one that is trained."""
    ended: Callable[[Group, DropReason | None], None] = lambda group, reason: None
    """Told of each group that becomes ready (None) or is dropped."""
    is_group_wise: Callable[[Task], bool] = lambda task: False
    """Whether the task's verifier judges all responses of a group together, once they are there."""
    adaptive: AdaptiveGroups | None = None
    """None where groups are admitted whole."""
    teacher: Teacher | None = None
    """Scores what was sampled, in on-policy distillation."""
    has_verdicts: bool = True
    """Whether verifiers judge the responses."""

    async def run(self, group: Group) -> None:
        """Leaves the group ready or dropped, or still open when the run is stopping. Raises InputError for an
        advantage of the recipe's own that breaks its contract, with the group open.

        When it is dropped meanwhile (it became too stale), this ends too.
        """
        has_failed = await self._generate(group)
        if self.adaptive is not None and self._is_graded(group):
            with naming(group):
                teaches = any(_has_gradient(worth) for _, worth in self._worths(group))
            if self.adaptive.extends(group, teaches=teaches):
                self.queue.extend(group)
                has_failed = await self._generate(group)
        if group.state is not GroupState.OPEN:
            self.ended(group, group.reason)
        elif has_failed:
            self._drop(group, DropReason.SERVER)
        elif self._is_graded(group):
            self._make_ready(group)

    def _is_graded(self, group: Group) -> bool:
        """Whether it is open and every trajectory has a verdict."""
        return group.state is GroupState.OPEN and not _without_verdict(group)

    def _lacks_scores(self, group: Group, trajectory: Trajectory) -> bool:
        """Whether the teacher is to be asked, once the trajectory is over."""
        return (
            self.teacher is not None
            and not trajectory.is_greedy
            and any(
                line.num_sampled_tokens() and line.trajectory_id not in group.teacher_scores
                for line in trajectory.lines()
            )
        )

    async def _generate(self, group: Group) -> bool:
        """Generates and grades its trajectories, and has them scored, as far as the run lives; whether
        generation failed."""
        has_failed, is_group_wise = False, self.is_group_wise(group.task)
        async with asyncio.TaskGroup() as verdicts:
            for trajectory in group.trajectories:
                if trajectory.finish is not None and self._lacks_scores(group, trajectory):
                    verdicts.create_task(self._ask_teacher(group, trajectory))
            for trajectory in _without_verdict(group):
                if trajectory.finish is not None and not is_group_wise:
                    verdicts.create_task(self._grade(group, trajectory))
            try:
                async for trajectory in self.rollouts.run(group):
                    if self._lacks_scores(group, trajectory):
                        verdicts.create_task(self._ask_teacher(group, trajectory))
                    # An environment may have given the verdict already.
                    if trajectory.trajectory_id not in group.scores and not is_group_wise:
                        verdicts.create_task(self._grade(group, trajectory))
            except GenerationFailed as error:
                log.error("group %d is dropped: %s", group.group_id, error)
                has_failed = True
        left = _without_verdict(group)
        if left and is_group_wise and not has_failed and all(each.finish is not None for each in left):
            await self._grade_together(group, left)
        return has_failed

    async def _ask_teacher(self, group: Group, trajectory: Trajectory) -> None:
        assert self.teacher is not None
        found = await self.teacher.scores(trajectory)
        if found is not None and group.state is GroupState.OPEN:
            self.queue.teach(group, found)

    async def _grade(self, group: Group, trajectory: Trajectory) -> None:
        if not self.has_verdicts:
            text = storable(self.codec.decode(trajectory.answer_tokens()))
            self.queue.score(group, trajectory, Score(UNJUDGED, None, 0.0, None, "", 0.0), text)
            return
        if self.judges_branches and len(lines := judged_lines(trajectory)) > 1:
            await self._grade_branches(group, trajectory, lines)
            return
        asked = self._answer(trajectory)
        with self._waiting(group, trajectory):
            score = await self.grader.grade(
                group.task, asked.text, asked.conversation, num_turns=asked.num_turns
            )
        if group.state is GroupState.OPEN:
            self.queue.score(group, trajectory, self._shaped(score, trajectory), storable(asked.text))

    async def _grade_together(self, group: Group, trajectories: list[Trajectory]) -> None:
        answers = [self._answer(trajectory) for trajectory in trajectories]
        with contextlib.ExitStack() as waiting:
            for trajectory in trajectories:
                waiting.enter_context(self._waiting(group, trajectory))
            scores = await self.grader.grade_group(group.task, answers)
        if group.state is GroupState.OPEN:
            self.queue.score_all(
                group,
                [
                    (trajectory, self._shaped(score, trajectory), storable(answer.text))
                    for trajectory, score, answer in zip(trajectories, scores, answers, strict=True)
                ],
            )

    def _answer(self, trajectory: Trajectory) -> Answer:
        text = self.codec.decode(trajectory.answer_tokens())
        conversation = partial(conversation_in, trajectory, self.codec)
        return Answer(text, conversation, len(trajectory.turn_lengths()))

    def _waiting(self, group: Group, trajectory: Trajectory) -> contextlib.AbstractContextManager[None]:
        verdict = Blocker(BlockerKind.VERDICT, group.task.verifier.name)
        return self.waits.waiting(f"trajectory {trajectory.trajectory_id}", verdict)

    def _shaped(self, score: Score, trajectory: Trajectory) -> Score:
        score = self.shaping.of(score, trajectory, trajectory.finish)
        return dataclasses.replace(score, credits=credits_of(score, trajectory, self.codec))

    async def _grade_branches(
        self, group: Group, trajectory: Trajectory, lines: Sequence[Trajectory]
    ) -> None:
        """All verdicts, recorded together: a restart asks for all of them again, or for none."""
        texts = [self.codec.decode(line.answer_tokens()) for line in lines]
        verdict = Blocker(BlockerKind.VERDICT, group.task.verifier.name)
        with self.waits.waiting(f"trajectory {trajectory.trajectory_id}", verdict):
            graded = await asyncio.gather(
                *(
                    self.grader.grade(
                        group.task,
                        text,
                        partial(conversation_in, line, self.codec),
                        num_turns=len(line.turn_lengths()),
                    )
                    for line, text in zip(lines, texts, strict=True)
                )
            )
        if group.state is not GroupState.OPEN:
            return
        scores = {}
        for line, score in zip(lines, graded, strict=True):
            score = self.shaping.of(score, line, trajectory.finish)
            credits = credits_of(score, line, self.codec)
            scores[line.trajectory_id] = dataclasses.replace(score, credits=credits)
        told = {line.trajectory_id: storable(text) for line, text in zip(lines, texts, strict=True)}
        answer = storable(self.codec.decode(trajectory.answer_tokens()))
        self.queue.score(group, trajectory, joint_score(trajectory, scores), answer, told)

    def _worths(self, group: Group) -> list[tuple[Trajectory, Worth]]:
        """Advantage of each sampled trajectory of a graded group; none where the group is too small."""
        graded = [
            (trajectory, score)
            for trajectory in group.trajectories
            if (score := group.scores[trajectory.trajectory_id]).reward is not None
            # One that the teacher refuses has no place in the loss, and is no baseline for others.
            and not self._lacks_scores(group, trajectory)
        ]
        sampled = [each for each in graded if not each[0].is_greedy]
        greedy = next((each for each in graded if each[0].is_greedy), None)
        min_size = self.algorithm.min_group_size() if self.has_verdicts else 1
        if len(sampled) < min_size or (self.algorithm.needs_greedy() and greedy is None):
            # The others had a fault: one trajectory is no baseline, nor is a greedy one without a verdict.
            return []
        worths = (
            worths_of(sampled, greedy, self.advantage, self.algorithm)
            if self.has_verdicts
            else [Worth(0.0)] * len(sampled)
        )
        pairs = zip(sampled, worths, strict=True)
        return [(trajectory, self.revised(trajectory, worth)) for (trajectory, _), worth in pairs]

    def _make_ready(self, group: Group) -> None:
        # An advantage that fails does so here, while the group is open: it resumes once that is fixed.
        with naming(group):
            worths = self._worths(group)
        if not worths:
            self._drop(group, DropReason.FAULT)
            return
        self.queue.has_signal(group)
        if not self.filter.lets_through(group):
            self._drop(group, DropReason.NO_SIGNAL)
            return
        found = {trajectory.trajectory_id: worth for trajectory, worth in worths}
        self.queue.make_ready(
            group,
            {name: worth.advantage for name, worth in found.items()},
            {name: worth.turns for name, worth in found.items() if worth.turns},
        )
        self.ended(group, None)

    def _drop(self, group: Group, reason: DropReason) -> None:
        self.queue.drop(group, reason)
        self.ended(group, reason)


def _has_gradient(worth: Worth) -> bool:
    return bool(worth.advantage) or any(advantage for _, advantage in worth.turns)


def _without_verdict(group: Group) -> list[Trajectory]:
    return [each for each in group.trajectories if each.trajectory_id not in group.scores]
