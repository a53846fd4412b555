"""Repetition: groups that were trained join later batches, at most `max_uses` times in all (replay ratio).

A batch holds the same new groups as without repetition, so admission, order and the staleness proof in
queue.py hold; up to `groups_per_batch` groups of earlier batches come on top. Each keeps its tokens,
versions and behavior log-probs: importance weights correct for how the policy has changed since. None is
taken whose oldest token is staler than `QueueSettings.repeat_reach`, so no more batches than that, and one,
are ever held in memory.

Which: the least often trained first, among those the freshest. Groups whose advantages are all 0 teach
nothing a second time and are left out, except under an advantage whose 0 is not a group's to know.
"""

from collections.abc import Iterable

from asyncrl.journal import queue_state
from asyncrl.journal.connection import Readable
from asyncrl.journal.queue_state import StoredGroup
from asyncrl.records import PolicyVersion, may_teach, oldest_version
from asyncrl.replay.group import Group, TaskOf, restored_group
from asyncrl.replay.settings import QueueSettings


def make_repetition(settings: QueueSettings) -> "Repetition | None":
    """None where each group is trained once."""
    return Repetition(settings) if settings.repeated_groups_per_batch else None


class Repetition:
    """`Repeats` of a queue with these settings."""

    def __init__(self, settings: QueueSettings) -> None:
        self._settings = settings
        self.groups_per_batch = settings.repeated_groups_per_batch
        self.max_uses = settings.max_uses
        self.reach = settings.repeat_reach()
        """In versions, at training."""
        self.always_teaches = settings.always_teaches
        self.pool: dict[int, Group] = {}
        """Groups that were taken and may be taken again."""

    def draw(self, version: PolicyVersion) -> list[Group]:
        """The groups that join the batch of `version`, in admission order; each has one use more then."""
        self._forget(version)
        ranked = sorted(self.pool.values(), key=lambda g: (g.num_uses, -g.oldest_version(), g.group_id))
        drawn = ranked[: self.groups_per_batch]
        for group in drawn:
            group.num_uses += 1
        return sorted(drawn, key=lambda group: group.group_id)

    def add(self, groups: Iterable[Group]) -> None:
        """Groups of a batch: they may join later ones."""
        self.pool.update((group.group_id, group) for group in groups if self._teaches(group.may_teach()))

    def restore(self, journal: Readable, task_of: TaskOf) -> None:
        """Fills a new pool with the groups that the next new batch, or a later one, may repeat."""
        self.add(restored_group(stored, task_of) for stored in self.repeatable(journal))

    def repeatable(self, journal: Readable) -> list[StoredGroup]:
        """These groups, as the journal holds them."""
        version, samples = queue_state.read_totals(journal).num_steps_taken, self._settings.samples_per_group
        if version >= self._settings.num_steps:
            return []
        # No token of a group is younger than the version that took it first.
        taken = queue_state.groups_taken_since(journal, version - self.reach, samples_per_group=samples)
        return [
            stored
            for stored in taken
            # Tokens may be compacted where an earlier start of the run repeated nothing.
            if any(line.segments for trajectory in stored.trajectories for line in trajectory.lines())
            and self.may_hold(
                version,
                num_uses=stored.num_uses,
                oldest=oldest_version(stored.trajectories, stored.admitted_version),
                may_teach=may_teach(stored.advantages, stored.turn_advantages),
            )
        ]

    def may_hold(
        self, version: PolicyVersion, *, num_uses: int, oldest: PolicyVersion, may_teach: bool
    ) -> bool:
        """Whether a batch from `version` on may hold a group that was in `num_uses` of them, whose oldest
        token `oldest` made. `may_teach`: one of its advantages is not 0."""
        is_fresh = oldest >= version - self.reach
        return is_fresh and num_uses < self.max_uses and self._teaches(may_teach)

    def _teaches(self, may_teach: bool) -> bool:
        return self.always_teaches or may_teach

    def _forget(self, version: PolicyVersion) -> None:
        """Forgets groups that no batch from `version` on may hold."""
        self.pool = {
            group_id: group
            for group_id, group in self.pool.items()
            if self.may_hold(
                version,
                num_uses=group.num_uses,
                oldest=group.oldest_version(),
                may_teach=group.may_teach(),
            )
        }


def restored_tasks(journal: Readable, settings: QueueSettings) -> list[tuple[str, str]]:
    """(task id, prompt) of each group that a restart brings back, and so asks the data for."""
    repetition = make_repetition(settings)
    repeatable = [] if repetition is None else repetition.repeatable(journal)
    return queue_state.live_tasks(journal) + [(stored.task_id, stored.prompt) for stored in repeatable]
