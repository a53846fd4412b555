"""From the journal back to memory: the queue that a restarted controller resumes with."""

from collections.abc import Callable

from asyncrl.journal import queue_state
from asyncrl.journal.connection import Readable
from asyncrl.journal.counters import read_counters
from asyncrl.journal.queue_state import StoredGroup
from asyncrl.records import PolicyVersion, Task, may_teach, oldest_version
from asyncrl.replay.group import Group, GroupState
from asyncrl.replay.queue import ReplayQueue
from asyncrl.replay.repetition import Repetition
from asyncrl.replay.settings import QueueSettings

TaskOf = Callable[[str, str], Task]
"""Finds the task of a task id and a prompt; raises InputError when the data no longer holds it."""


def restore(queue: ReplayQueue, task_of: TaskOf) -> None:
    """Fills a new queue with what its journal holds: open and ready groups, counts, takes and commits."""
    journal, samples = queue.journal, queue.settings.samples_per_group
    totals = queue_state.read_totals(journal)
    live = queue_state.live_groups(journal, samples_per_group=samples)
    queue.resume(
        totals,
        [_group(stored, task_of) for stored in live],
        counters=read_counters(journal),
        taken_tokens=queue_state.taken_tokens(journal),
        repeated_tokens=queue_state.repeated_tokens(journal),
    )
    repeatable = _repeatable(journal, queue.settings, totals.num_steps_taken)
    queue.repetition.add(_group(stored, task_of) for stored in repeatable)


def restored_tasks(journal: Readable, settings: QueueSettings) -> list[tuple[str, str]]:
    """(task id, prompt) of each group that `restore` brings back, and so asks the data for."""
    repeatable = _repeatable(journal, settings, queue_state.read_totals(journal).num_steps_taken)
    return queue_state.live_tasks(journal) + [(stored.task_id, stored.prompt) for stored in repeatable]


def _repeatable(journal: Readable, settings: QueueSettings, version: PolicyVersion) -> list[StoredGroup]:
    """Groups that the next new batch, of `version`, or a later one may repeat."""
    if not settings.repeated_groups_per_batch or version >= settings.num_steps:
        return []
    repetition, samples = Repetition(settings), settings.samples_per_group
    # No token of a group is younger than the version that took it first.
    taken = queue_state.groups_taken_since(journal, version - repetition.reach, samples_per_group=samples)
    return [
        stored
        for stored in taken
        # Tokens may be compacted where an earlier start of the run repeated nothing.
        if any(line.segments for trajectory in stored.trajectories for line in trajectory.lines())
        and repetition.may_hold(
            version,
            num_uses=stored.num_uses,
            oldest=oldest_version(stored.trajectories, stored.admitted_version),
            may_teach=may_teach(stored.advantages, stored.turn_advantages),
        )
    ]


def _group(stored: StoredGroup, task_of: TaskOf) -> Group:
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
        teacher_scores=stored.teacher_scores,
    )
