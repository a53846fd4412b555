"""Settings of the replay queue, from the recipe."""

from dataclasses import dataclass

from asyncrl.recipe import Recipe
from asyncrl.records import PolicyVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    groups_per_batch: int
    samples_per_group: int
    max_staleness: int
    """In versions: no token of a batch is older than that, by the proof in queue.py."""
    num_steps: int
    """Steps of the run: no more groups are admitted than they train."""
    pilot_samples: int | None = None
    """Trajectories that a group is admitted with, where the others may follow (`ReplayQueue.extend`)."""
    has_greedy: bool = False
    """Each group has one more trajectory, the last, greedy and never trained."""
    order: str = "admission"
    """A key of `policy.ORDERS`."""
    abort_staleness: int | None = None
    """Groups whose oldest token would be older than that at the next take are dropped: below
    `max_staleness`, which bounds what is admitted, a limit on what became old in flight."""
    repeated_groups_per_batch: int = 0
    """Previously trained groups added to each batch; 0 adds none."""
    max_uses: int = 2
    """Batches that may hold a group."""
    always_teaches: bool = False
    """As in `Algorithm`, or with a teacher: also a group whose advantages are all 0 is worth repeating."""

    def num_at_admission(self) -> int:
        """Trajectories that a group is admitted with."""
        return self.pilot_samples or self.samples_per_group + self.has_greedy

    def batches_ahead(self) -> int:
        """Batches of groups that may be admitted and not taken, while the run is far from its end."""
        return self.max_staleness + 1

    def repeat_reach(self) -> int:
        """Most versions from a group's oldest token to a batch that repeats it; 0 where nothing is repeated.

        No more lie between the batch that took it first and that one.
        """
        if not self.repeated_groups_per_batch:
            return 0
        return self.max_staleness if self.abort_staleness is None else self.abort_staleness

    def most_admitted(self, version: PolicyVersion) -> int:
        """Groups that may have been admitted, dropped ones apart, while the trainer is at `version`."""
        return min(self.batches_ahead() + version, self.num_steps) * self.groups_per_batch

    @classmethod
    def of(cls, recipe: Recipe) -> "QueueSettings":
        return cls(
            groups_per_batch=recipe.rollout.groups_per_batch,
            samples_per_group=recipe.rollout.samples_per_group,
            max_staleness=recipe.rollout.max_staleness,
            num_steps=recipe.trainer.num_steps,
            pilot_samples=recipe.rollout.pilot_samples,
            has_greedy=recipe.algorithm.needs_greedy(),
            order=recipe.replay.order,
            abort_staleness=recipe.rollout.abort_staleness,
            repeated_groups_per_batch=recipe.replay.repeated_groups_per_batch,
            max_uses=recipe.replay.max_uses,
            always_teaches=recipe.algorithm.always_teaches() or recipe.teacher.is_on(),
        )
