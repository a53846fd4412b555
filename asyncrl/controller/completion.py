"""The parts of a run that bring groups from generation to a batch: sampled ones, recorded ones, and rows that
are learned.
"""

from dataclasses import dataclass
from pathlib import Path

import aiohttp

from asyncrl.algorithms.advantages import find_advantage
from asyncrl.controller.inputs import Inputs
from asyncrl.journal.recorded_groups import RecordedGroup
from asyncrl.journal.writer import Journal
from asyncrl.loops import RunPart, Waits
from asyncrl.model.side_models import read_teacher
from asyncrl.observe.alarms.no_correct import DroppedGroups, ZeroReward
from asyncrl.observe.metrics.prometheus import RunMetrics
from asyncrl.observe.metrics.turn_metrics import PilotMeter
from asyncrl.recipe import Recipe
from asyncrl.records import Finish, Score, Segment, Trajectory
from asyncrl.replay.branches import open_line
from asyncrl.replay.group import Group
from asyncrl.replay.queue import ReplayQueue
from asyncrl.rollout.complete import GroupCompletion, Rollouts, Verdicts, Worth
from asyncrl.rollout.credits import Shaping, credited_worths, without_turns
from asyncrl.rollout.fault_limit import retried_fault
from asyncrl.rollout.filter import AdaptiveGroups, SignalFilter
from asyncrl.rollout.grade import Grader
from asyncrl.rollout.judged_groups import GroupVerdicts, NoVerdicts, Shaped
from asyncrl.rollout.teacher import Teacher, TeacherScoring
from asyncrl.serving.server_process import ProcessOwner
from asyncrl.system.places import LOGS
from asyncrl.tasks.demonstration import Demonstration, Pair
from asyncrl.tasks.order import TaskOrder
from asyncrl.tasks.source_choice import SourceChoice
from asyncrl.turns.history import summary_turns


@dataclass(frozen=True)
class RecordedCompletion(RunPart):
    """In place of the rollout loop's body, which gets the groups that are not recorded."""

    queue: ReplayQueue
    others: GroupCompletion
    num_recorded: int
    """Groups; they are the first."""

    def may_admit(self) -> bool:
        """Batches of a warm-up on recorded responses have no other groups, which the policy has to learn."""
        num_steps = self.num_recorded // self.queue.settings.groups_per_batch
        return not self.needs_server() or self.queue.num_steps_taken >= num_steps

    def needs_server(self) -> bool:
        return self.queue.num_admitted >= self.num_recorded

    async def run(self, group: Group) -> None:
        """Leaves the group ready. One that a crash left open keeps the parts that the journal has."""
        recorded = group.task.reference
        if not isinstance(recorded, RecordedGroup):
            await self.others.run(group)
            return
        rewards: dict[str, float] = {}
        for trajectory, response in zip(group.trajectories, recorded.responses, strict=True):
            if trajectory.finish is None:
                # Which policy sampled it is that run's matter: here it is of the version that admits it.
                segment = Segment(group.admitted_version, [*response.tokens], [*response.behavior_logprobs])
                self.queue.append(group, trajectory, [segment], response.finish)
            if trajectory.trajectory_id not in group.scores:
                self.queue.score(group, trajectory, response.score, response.text)
            assert response.score.reward is not None
            rewards[trajectory.trajectory_id] = response.score.reward
        # The critic makes advantages of rewards.
        self.queue.make_ready(group, rewards)


# A pair is one trajectory: the chosen response is its own, the rejected one that of its branch.
GIVEN = "given"
"""Outcome of a response that a row gave: no verifier has judged it."""


@dataclass(frozen=True)
class RowCompletion(RunPart):
    """In place of the rollout loop's body."""

    queue: ReplayQueue

    def needs_server(self) -> bool:
        return False

    async def run(self, group: Group) -> None:
        """Leaves the group ready. One that a crash left open keeps the parts that the journal has."""
        (trajectory,) = group.trajectories
        row: Demonstration | Pair = group.task.reference
        if trajectory.finish is None:
            for place, line in enumerate(row.lines()):
                if place == len(trajectory.lines()):
                    open_line(self.queue, group, trajectory, line.prompt_tokens)
                self._append(group, trajectory.lines()[place], line)
            self.queue.append(group, trajectory, [], Finish.STOP)
        if trajectory.trajectory_id not in group.scores:
            self.queue.score(group, trajectory, Score(GIVEN, None, 0.0, None, "", 0.0), "")
        name = trajectory.trajectory_id
        # As the page shows them: which side is pushed up, and which down.
        sides = [(line.num_sampled_tokens(), 1.0 - 2.0 * i) for i, line in enumerate(trajectory.lines())]
        self.queue.make_ready(group, {name: 1.0}, {name: sides} if len(sides) > 1 else {})

    def _append(self, group: Group, line: Trajectory, row: Demonstration) -> None:
        newest = line.newest_version()
        parts = row.segments(group.admitted_version if newest is None else newest)
        for part in parts[len(line.segments) :]:
            if isinstance(part, Segment):
                self.queue.append(group, line, [part], None)
            else:
                line.turn_finish = Finish.STOP
                self.queue.observe(group, line, part)


def make_grader(inputs: Inputs, run_folder: Path | None, journal: Journal) -> Grader:
    recipe = inputs.recipe
    return Grader(
        recipe.verifying,
        inputs.verifiers,
        max_fault_retries=recipe.rollout.max_fault_retries,
        prints=None if run_folder is None else run_folder / LOGS / "verifiers.log",
        on_retried=lambda task, fault: journal.write(retried_fault(task, fault)),
    )


def make_dropped(inputs: Inputs, metrics: RunMetrics) -> DroppedGroups:
    rollout = inputs.recipe.rollout
    zero_reward = ZeroReward(
        inputs.codec.decode,
        metrics.alarm,
        max_new_tokens=rollout.max_new_tokens,
        num_steps=inputs.recipe.alarms.no_correct_steps,
        groups_per_batch=rollout.groups_per_batch,
    )
    return DroppedGroups(metrics.dropped, zero_reward, groups_per_batch=rollout.groups_per_batch)


def without_summaries(trajectory: Trajectory, worth: Worth) -> Worth:
    """The worth of a trajectory whose summaries have none (turns.summarize.trains)."""
    return without_turns(worth, trajectory.turn_lengths(), summary_turns(trajectory))


def make_completion(
    inputs: Inputs,
    queue: ReplayQueue,
    rollouts: Rollouts,
    shaping: Shaping,
    grader: Grader,
    waits: Waits,
    dropped: DroppedGroups,
    adaptive: AdaptiveGroups | None,
    teacher: Teacher | None = None,
) -> GroupCompletion:
    has_verdicts = inputs.recipe.has_verdicts()
    algorithm, replay = inputs.recipe.algorithm, inputs.recipe.replay
    summarize = inputs.recipe.turns.summarize
    revised = {} if summarize is None or summarize.trains else {"revised": without_summaries}
    verdicts: Verdicts = NoVerdicts(queue, inputs.codec)
    if has_verdicts:
        verdicts = GroupVerdicts(
            *(queue, grader, inputs.codec, waits, Shaped(shaping, inputs.codec)),
            judges_branches=inputs.recipe.agent.verdict == "branch",
            is_group_wise=lambda task: inputs.verifiers.is_group_wise(task.verifier),
        )
    signal = SignalFilter(replay.drops_no_signal, replay.max_dropped_in_a_row, queue.has_signal)
    return GroupCompletion(
        queue,
        rollouts,
        verdicts,
        find_advantage(algorithm),
        algorithm,
        signal.lets_through,
        worths=credited_worths,
        ended=dropped.ended,
        extends=None if adaptive is None else adaptive.extends,
        scores=None if teacher is None else TeacherScoring(teacher, queue),
        has_verdicts=has_verdicts,
        **revised,
    )


def make_teacher(
    recipe: Recipe, url: str | None, session: aiohttp.ClientSession, waits: Waits, processes: ProcessOwner
) -> Teacher | None:
    """None without a teacher."""
    if url is None:
        return None
    serving = recipe.serving
    return Teacher(
        url,
        temperature=recipe.rollout.temperature,
        session=session,
        waits=waits,
        processes=processes,
        max_running=serving.max_running_requests,
        timeout_seconds=serving.request_timeout_seconds,
        max_refused_in_a_row=recipe.verifying.max_faults_in_a_row,
        top_k=recipe.teacher.top_k or 0,
        never=frozenset(read_teacher(recipe).unsampled.ids) if recipe.teacher.top_k else (),
    )


def make_pilot_meter(recipe: Recipe) -> PilotMeter | None:
    """None where groups are admitted whole."""
    if recipe.rollout.pilot_samples is None:
        return None
    return PilotMeter(has_sources=len(recipe.data.train_sources()) > 1)


def make_adaptive(
    recipe: Recipe, queue: ReplayQueue, order: TaskOrder, pilots: PilotMeter | None
) -> AdaptiveGroups | None:
    if pilots is None:
        return None
    assert isinstance(order.chooser, SourceChoice) and order.chooser.selection is not None
    return AdaptiveGroups(
        recipe.rollout.samples_per_group,
        recipe.rollout.pilot_min_chance,
        order.chooser.selection.rates,
        order.row_of,
        queue.reached_version,
        pilots.decided,
    )
