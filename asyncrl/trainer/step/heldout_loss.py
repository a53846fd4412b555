"""The loss on held-out rows, where rows are learned: before the first step, and after evaluated ones.

It is a mean over all learned tokens of all rows, as the loss of a step is over its batch.
"""

from collections.abc import Sequence

from asyncrl.recipe import Recipe
from asyncrl.records import Batch, PolicyVersion, ScoredSequence
from asyncrl.trainer.step.learner import Learner


class HeldOutLoss:
    """Columns of a step; none without held-out rows. A call of every rank."""

    def __init__(self, learner: Learner, recipe: Recipe) -> None:
        self._learner = learner
        self._recipe = recipe
        self._rows: Sequence[ScoredSequence] = ()
        self.scores: dict[PolicyVersion, float] = {}
        """Version -> its held-out loss, negative: higher is better."""

    def before(self, version: PolicyVersion, rows: Sequence[ScoredSequence]) -> dict[str, float]:
        """Before a step; the first batch of a process comes with `rows`. The base model's loss, once."""
        self._rows = rows or self._rows
        if version or not self._rows:
            return {}
        return {f"{name}_at_start": value for name, value in self._measured(version).items()}

    def after(self, version: PolicyVersion) -> dict[str, float]:
        """After the step that made `version`, where it is one to evaluate."""
        every, last = self._recipe.evaluation.every_steps, self._recipe.trainer.num_steps
        is_due = version == last or (every > 0 and version % every == 0)
        if not (is_due and self._rows):
            return {}
        found = self._measured(version)
        self.scores[version] = -found["heldout_loss"]
        return found

    def _measured(self, version: PolicyVersion) -> dict[str, float]:
        found = self._learner.measure(Batch(version, 1.0, list(self._rows)))
        kept = ("loss", "perplexity", "dpo_accuracy", "dpo_margin")
        return {f"heldout_{name}": found[name] for name in kept if name in found}
