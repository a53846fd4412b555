"""Replay: groups that were trained join later batches, at most `max_uses` times in all (the replay ratio).

A batch holds its new groups as ever, so admission, order and the staleness proof in queue.py stay; up to
`groups_per_batch` groups of earlier batches come on top. Each keeps its tokens, versions and behavior
log-probs: importance weights correct for what the policy has become since. None is taken whose oldest token
is staler than `max_staleness`, so no more than max_staleness + 1 batches are ever held in memory.

Which: the least often trained first, among those the freshest. Groups whose advantages are all 0 teach
nothing a second time and are left out, except under an advantage whose 0 is not a group's to know.
"""

from collections.abc import Iterable, Sequence

from asyncrl.journal.writer import Statement
from asyncrl.replay.group import Group


class Repetition:
    """Owned by the queue. Off when `groups_per_batch` is 0."""

    def __init__(
        self, *, groups_per_batch: int, max_uses: int, max_staleness: int, always_teaches: bool = False
    ) -> None:
        """`max_staleness` in versions, at training; `always_teaches` as in `Algorithm`."""
        self.groups_per_batch = groups_per_batch
        self.max_uses = max_uses
        self.max_staleness = max_staleness
        self.always_teaches = always_teaches
        self.pool: dict[int, Group] = {}
        """Groups that were taken and may be taken again."""

    def draw(self, step: int) -> list[Group]:
        """The groups that join the batch of `step`, in admission order; each has one use more then."""
        self._forget(step)
        ranked = sorted(self.pool.values(), key=lambda g: (g.num_uses, -g.oldest_version(), g.group_id))
        drawn = ranked[: self.groups_per_batch]
        for group in drawn:
            group.num_uses += 1
        return sorted(drawn, key=lambda group: group.group_id)

    def add(self, groups: Iterable[Group]) -> None:
        """Groups of a batch: they may join later ones."""
        if self.groups_per_batch:
            self.pool.update(
                (group.group_id, group)
                for group in groups
                if self.always_teaches or any(group.advantages.values())
            )

    def _forget(self, step: int) -> None:
        """Those that no batch from `step` on may hold."""
        self.pool = {
            group_id: group
            for group_id, group in self.pool.items()
            if group.num_uses < self.max_uses and group.oldest_version() >= step - self.max_staleness
        }


def repetition_rows(groups: Sequence[Group], step: int) -> list[Statement]:
    """Journals that the batch of `step` holds `groups` again."""
    return [("INSERT INTO repetitions VALUES (?, ?)", (step, group.group_id)) for group in groups]
