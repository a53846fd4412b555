"""Completions of groups as the controller makes them, on parts of a test."""

from collections.abc import Callable
from typing import Any

from asyncrl.algorithms.advantages import find_advantage
from asyncrl.loops import Waits
from asyncrl.recipe import Algorithm
from asyncrl.records import Task
from asyncrl.replay.group import Group
from asyncrl.replay.queue import ReplayQueue
from asyncrl.rollout.complete import GroupCompletion
from asyncrl.rollout.credits import Shaping, credited_worths
from asyncrl.rollout.filter import SignalFilter
from asyncrl.rollout.judged_groups import GroupVerdicts, NoVerdicts, Shaped


def completion_on(
    queue: ReplayQueue,
    rollouts: Any,
    grader: Any,
    codec: Any,
    algorithm: Algorithm,
    has_signal: Callable[[Group], bool],
    *,
    drops: bool = False,
    most_dropped: int = 1,
    limits: Any = None,
    judges_branches: bool = False,
    is_group_wise: Callable[[Task], bool] = lambda task: False,
    has_verdicts: bool = True,
    **optional: Any,
) -> GroupCompletion:
    """`limits` are those of lengths, by default `rollouts`."""
    shaping = Shaping(algorithm, rollouts if limits is None else limits)
    judged = GroupVerdicts(
        *(queue, grader, codec, Waits(), Shaped(shaping, codec)),
        judges_branches=judges_branches,
        is_group_wise=is_group_wise,
    )
    return GroupCompletion(
        queue,
        rollouts,
        judged if has_verdicts else NoVerdicts(queue, codec),
        find_advantage(algorithm),
        algorithm,
        SignalFilter(drops, most_dropped, has_signal).lets_through,
        has_verdicts=has_verdicts,
        worths=credited_worths,
        **optional,
    )
