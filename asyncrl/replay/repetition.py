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

from asyncrl.records import PolicyVersion
from asyncrl.replay.group import Group
from asyncrl.replay.settings import QueueSettings


class Repetition:
    """Owned by the queue. Off when `groups_per_batch` is 0."""

    def __init__(self, settings: QueueSettings) -> None:
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
        if self.groups_per_batch:
            self.pool.update((group.group_id, group) for group in groups if self._teaches(group.may_teach()))

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
