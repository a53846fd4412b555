"""Verdicts beyond one per trajectory: on a whole group, on each branch, and none where a teacher alone says
what a response is worth."""

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from asyncrl.model.tokenizer import TextCodec
from asyncrl.records import Finish, Score, Task, Trajectory
from asyncrl.replay.group import Group, GroupState
from asyncrl.replay.queue import ReplayQueue
from asyncrl.rollout.credits import Shaping, credits_of, joint_score, judged_lines
from asyncrl.rollout.grade import TrajectoryVerdicts
from asyncrl.rollout.told_task import conversation_in
from verifiers.storable import storable

UNJUDGED = "unjudged"
"""Outcome of a response that no verifier was asked about: a teacher alone says what it is worth."""


@dataclass(frozen=True)
class Shaped:
    """The score of a trajectory or branch, shaped by its length and with its credits."""

    shaping: Shaping
    codec: TextCodec

    def __call__(self, score: Score, trajectory: Trajectory, finish: Finish | None) -> Score:
        score = self.shaping.of(score, trajectory, finish)
        return dataclasses.replace(score, credits=credits_of(score, trajectory, self.codec))


@dataclass(frozen=True)
class GroupVerdicts(TrajectoryVerdicts):
    judges_branches: bool = False
    """Whether each branch of an agent has a verdict of its own (agent.verdict)."""
    is_group_wise: Callable[[Task], bool] = lambda task: False
    """Whether the task's verifier judges all responses of a group together."""

    def are_together(self, group: Group) -> bool:
        return self.is_group_wise(group.task)

    async def judge(self, group: Group, trajectory: Trajectory) -> None:
        if self.judges_branches and len(lines := judged_lines(trajectory)) > 1:
            await self._judge_branches(group, trajectory, lines)
        else:
            await super().judge(group, trajectory)

    async def judge_together(self, group: Group, trajectories: Sequence[Trajectory]) -> None:
        answers = [self.answer(trajectory) for trajectory in trajectories]
        with contextlib.ExitStack() as waiting:
            for trajectory in trajectories:
                waiting.enter_context(self.waiting(group, trajectory))
            scores = await self.grader.grade_group(group.task, answers)
        if group.state is GroupState.OPEN:
            self.queue.score_all(
                group,
                [
                    (trajectory, self.shaped(score, trajectory, trajectory.finish), storable(answer.text))
                    for trajectory, score, answer in zip(trajectories, scores, answers, strict=True)
                ],
            )

    async def _judge_branches(
        self, group: Group, trajectory: Trajectory, lines: Sequence[Trajectory]
    ) -> None:
        """All verdicts, recorded together: a restart asks for all of them again, or for none."""
        texts = [self.codec.decode(line.answer_tokens()) for line in lines]
        with self.waiting(group, trajectory):
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
        scores = {
            line.trajectory_id: self.shaped(score, line, trajectory.finish)
            for line, score in zip(lines, graded, strict=True)
        }
        told = {line.trajectory_id: storable(text) for line, text in zip(lines, texts, strict=True)}
        answer = storable(self.codec.decode(trajectory.answer_tokens()))
        self.queue.score(group, trajectory, joint_score(trajectory, scores), answer, told)


@dataclass(frozen=True)
class NoVerdicts:
    """In the place of verdicts where a teacher alone gives advantages."""

    queue: ReplayQueue
    codec: TextCodec

    def are_together(self, group: Group) -> bool:
        return False

    async def judge(self, group: Group, trajectory: Trajectory) -> None:
        text = storable(self.codec.decode(trajectory.answer_tokens()))
        self.queue.score(group, trajectory, Score(UNJUDGED, None, 0.0, None, "", 0.0), text)

    async def judge_together(self, group: Group, trajectories: Sequence[Trajectory]) -> None:
        raise NotImplementedError("nothing is judged")
