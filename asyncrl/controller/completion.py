"""The parts of a run that bring groups from generation to a batch: verdicts, pilots, advantages."""

from pathlib import Path

import aiohttp

from asyncrl.algorithms.advantages import find_advantage
from asyncrl.controller.inputs import Inputs
from asyncrl.journal.writer import Journal
from asyncrl.loops.waits import Waits
from asyncrl.model.teacher import read_teacher
from asyncrl.observe.alarms.no_correct import ZeroReward
from asyncrl.observe.metrics.dropped_groups import DroppedGroups
from asyncrl.observe.metrics.prometheus import RunMetrics
from asyncrl.observe.metrics.source_metrics import PilotMeter
from asyncrl.recipe import Recipe
from asyncrl.replay.queue import ReplayQueue
from asyncrl.rollout.adaptive import AdaptiveGroups
from asyncrl.rollout.complete import GroupCompletion, Rollouts
from asyncrl.rollout.fault_limit import retried_fault
from asyncrl.rollout.filter import SignalFilter
from asyncrl.rollout.grade import Grader
from asyncrl.rollout.shaping import Shaping
from asyncrl.rollout.teacher import Teacher
from asyncrl.serving.server_process import ProcessOwner
from asyncrl.system.run_files import LOGS
from asyncrl.tasks.order import TaskOrder


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
    return GroupCompletion(
        queue,
        rollouts,
        shaping,
        grader,
        inputs.codec,
        find_advantage(algorithm),
        algorithm,
        waits,
        SignalFilter(replay.drops_no_signal, replay.max_dropped_in_a_row, queue.has_signal),
        judges_branches=inputs.recipe.agent.verdict == "branch",
        ended=dropped.ended,
        is_group_wise=lambda task: has_verdicts and inputs.verifiers.is_group_wise(task.verifier),
        adaptive=adaptive,
        teacher=teacher,
        has_verdicts=has_verdicts,
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
    assert order.selection is not None
    return AdaptiveGroups(
        recipe.rollout.samples_per_group,
        recipe.rollout.pilot_min_chance,
        order.selection.rates,
        order.row_of,
        queue.reached_version,
        pilots.decided,
    )
