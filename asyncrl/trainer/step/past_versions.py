"""Log-probs of stale tokens under the trainer's own version that sampled them (trainer.splits_staleness).

Keeps this rank's weights of the last versions in host memory, and one model beside the policy that takes them
over one after the other. For each version that a batch's stale tokens are of, the sequences with such tokens
pass it once, forward. After a resume the versions before it are gone: their tokens have no number.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from asyncrl.model.layout import Layout
from asyncrl.model.shape import ModelShape
from asyncrl.model.unsampled import Unsampled
from asyncrl.recipe import Model
from asyncrl.records import Batch, PolicyVersion
from asyncrl.trainer.network.model import Policy
from asyncrl.trainer.network.reference import build_frozen
from asyncrl.trainer.network.routers import all_weights
from asyncrl.trainer.packing.batch import MicroBatch, make_micro_batch
from asyncrl.trainer.step.passes import Passes


class PastVersions:
    """The last `num_kept` versions before the one in training."""

    def __init__(
        self,
        shape: ModelShape,
        section: Model,
        layout: Layout,
        unsampled: Unsampled,
        *,
        num_kept: int,
        kernel: str,
    ) -> None:
        self.model, self._chunks = build_frozen(shape, section, layout, unsampled)
        self._layout, self._kernel, self._num_kept = layout, kernel, num_kept
        self._kept: dict[PolicyVersion, list[Tensor]] = {}
        self._device = next(self.model.parameters()).device

    @torch.no_grad()
    def keep(self, version: PolicyVersion, policy: Policy) -> None:
        """Copies the weights of `policy`, which are `version`; forgets the oldest."""
        self._kept.pop(version, None)
        while len(self._kept) >= self._num_kept:
            del self._kept[min(self._kept)]
        self._kept[version] = [weights.detach().to("cpu", copy=True) for weights in all_weights(policy)]

    def logprobs(
        self, parts: Sequence[Sequence[MicroBatch]], batch: Batch, passes: Passes
    ) -> list[list[Tensor]]:
        """[T] of each micro-batch of each mini-batch: log-probs of its stale tokens, NaN of all others and of
        versions that are not kept. A call of every rank, each with its part of `batch`."""
        micro_batches = [micro for part in parts for micro in part]
        found = [torch.full((len(micro.targets),), torch.nan, device=self._device) for micro in micro_batches]
        lines = {sequence.sequence_id: sequence for sequence in batch.sequences}
        for version in sorted(self._needed(batch)):
            self._load(version)
            lag = batch.taken_version - version
            chosen = [micro.line_ids[micro.lags == lag].unique().tolist() for micro in micro_batches]
            packed = [
                make_micro_batch(
                    [lines[micro.lines[i]] for i in own],
                    batch.taken_version,
                    token_multiple=self._layout.token_multiple(),
                    kernel=self._kernel,
                )
                for micro, own in zip(micro_batches, chosen, strict=True)
            ]
            known = passes.logprobs(self._chunks, packed, batch.temperature)
            # Empty on all pipeline stages but the last, which alone compute a loss.
            for i, values in enumerate(known):
                into, out = micro_batches[i].lags == lag, packed[i].lags == lag
                found[i][into.to(self._device)] = values[out.to(values.device)].float()
        by_part = iter(found)
        return [[next(by_part) for _ in part] for part in parts]

    def _needed(self, batch: Batch) -> Iterable[PolicyVersion]:
        """Kept versions that stale tokens of the whole batch are of, the same on every rank."""
        versions = (np.unique(np.asarray(one.token_versions, np.int64)) for one in batch.sequences)
        of_tokens = {version for own in versions for version in own.tolist()}
        return (of_tokens - {batch.taken_version}) & self._kept.keys()

    @torch.no_grad()
    def _load(self, version: PolicyVersion) -> None:
        for own, kept in zip(all_weights(self.model), self._kept[version], strict=True):
            own.copy_(kept)
