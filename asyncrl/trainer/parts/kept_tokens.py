"""Tokens that top-p, top-k and min-p left: the policy's log-probs are over these, as those of servers are."""

from asyncrl.errors import InputError
from asyncrl.model.column_bytes import KEPT_SETS, num_kept_sets
from asyncrl.recipe import Recipe
from asyncrl.records import Batch
from asyncrl.trainer.packing.columns import Column
from asyncrl.trainer.packing.kept_sets import KeptColumn
from asyncrl.trainer.step.learner import Learner
from asyncrl.trainer.step.part import StepPart


class KeptTokens(StepPart):
    """Renormalizes predictions over kept sets, and refuses batches without them, or with some where the
    recipe's sampling leaves all tokens: their log-probs are of another distribution than the trainer's."""

    def __init__(self, learner: Learner, recipe: Recipe) -> None:
        self._is_truncated = recipe.rollout.is_truncated()

    def columns(self) -> list[Column]:
        return [KeptColumn()]

    def check(self, batch: Batch) -> None:
        for sequence in batch.sequences:
            num_sets, num_tokens = num_kept_sets(sequence.columns.get(KEPT_SETS, b"")), sequence.num_sampled()
            wanted, state = (num_tokens, "set") if self._is_truncated else (0, "not set")
            if num_sets != wanted:
                raise InputError(
                    f"Step {batch.taken_version + 1} has {num_sets} kept sets for the {num_tokens} tokens of "
                    f"response {sequence.sequence_id}, expected {wanted}: rollout.top_k is {state}. To start "
                    f"over, set run_folder (or name) to a new one."
                )
