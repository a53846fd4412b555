"""From the journal back to memory: the queue that a restarted controller resumes with."""

from collections.abc import Callable

from asyncrl.journal import queue_state
from asyncrl.journal.counters import read_counters
from asyncrl.journal.queue_state import StoredGroup
from asyncrl.records import Task
from asyncrl.replay.group import Group, GroupState
from asyncrl.replay.queue import ReplayQueue

TaskOf = Callable[[str, str], Task]
"""Finds the task of a task id and a prompt; raises InputError when the data no longer holds it."""


def restore(queue: ReplayQueue, task_of: TaskOf) -> None:
    """Fills a new queue with what its journal holds: open and ready groups, counts, takes and commits."""
    journal, samples = queue.journal, queue.settings.samples_per_group
    totals = queue_state.read_totals(journal)
    live = queue_state.live_groups(journal, samples_per_group=samples)
    queue.resume(
        totals,
        [restored_group(stored, task_of) for stored in live],
        counters=read_counters(journal),
        taken_tokens=queue_state.taken_tokens(journal),
        repeated_tokens=queue_state.repeated_tokens(journal),
    )
    if queue.repeats is not None:
        queue.repeats.restore(journal, task_of)


def restored_group(stored: StoredGroup, task_of: TaskOf) -> Group:
    return Group(
        stored.group_id,
        task_of(stored.task_id, stored.prompt),
        stored.admitted_version,
        stored.trajectories,
        GroupState(stored.state),
        stored.scores,
        stored.advantages,
        stored.turn_advantages,
        taken_version=stored.taken_version,
        num_uses=stored.num_uses,
        columns=stored.columns,
    )
