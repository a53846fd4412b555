"""Which row of which parameter made a spike of the gradient norm.

A norm of SPIKE_FACTOR times the usual one is looked into: the gradient, which lies in the buffers after the
optimizer step too, goes to the first rank one parameter at a time, as for an export. That costs about as much
as writing a publication, and nothing in other steps. Tensor, pipeline, expert and data parallelism and the
distributed optimizer are covered: rows are those of whole Hugging Face tensors. Not covered: the critic, and
the first FEWEST_NORMS optimizer steps of a trainer's process, whose usual norm is not known yet. Under
adapters rows are those of their matrices, by peft's names: a row of lora_A is one of the `rank` directions.
"""

import statistics
from collections import deque
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.distributed import DistributedDataParallel
from torch import Tensor

from asyncrl.recipe import Recipe
from asyncrl.records import GradientSpike
from asyncrl.trainer.network.convert import export_weights
from asyncrl.trainer.ranks import ranks
from asyncrl.trainer.step.learner import Learner
from asyncrl.trainer.step.part import StepPart

SPIKE_FACTOR = 5.0
"""Recorded runs have norms of 0.2 to 0.7, and of 91 or more where a token with a row of zeros was sampled."""
NUM_NORMS = 32
"""Norms of the optimizer steps before, whose median is the usual one."""
FEWEST_NORMS = 4


class Spikes(StepPart):
    """Looks into each optimizer step of the policy whose gradient is a spike."""

    def __init__(self, learner: Learner, recipe: Recipe) -> None:
        self._model = learner.model
        self._chunks = learner.parallel_chunks
        self._norms: deque[float] = deque(maxlen=NUM_NORMS)
        self._found: GradientSpike | None = None

    def stepped(self, norm: float | None) -> None:
        if norm is None:
            return
        usual = statistics.median(self._norms) if len(self._norms) >= FEWEST_NORMS else 0.0
        self._norms.append(norm)
        # The first rank decides: another order of sums may round a norm to the other side of the limit.
        if not ranks.broadcast(0.0 < SPIKE_FACTOR * usual < norm):
            return
        found = self.largest_row(norm, norm / usual)
        if found is not None and (self._found is None or found.share > self._found.share):
            self._found = found

    def sent(self) -> dict[str, Any]:
        return {"spike": self.pop()}

    def pop(self) -> GradientSpike | None:
        """On the first rank, what was found since the last call; of several spikes the most uneven one."""
        found, self._found = self._found, None
        return found

    @torch.no_grad()
    def largest_row(self, norm: float, times: float) -> GradientSpike | None:
        """The spike that the gradient in the buffers is, on the first rank; None on the others.

        The optimizer may have clipped it: shares stay.
        """
        for chunk in self._chunks:
            if chunk.ddp_config.use_distributed_optimizer:
                gather_gradients(chunk)
        total, largest, name, row = 0.0, -1.0, "", 0
        of_adapters = self._model.lora is not None
        for parameter, gradient in export_weights(self._model, main_gradient, of_adapters=of_adapters):
            squares = row_squares(gradient)
            total += squares.sum().item()
            if squares.max().item() > largest:
                largest, name, row = squares.max().item(), parameter, int(squares.argmax())
        if total <= 0.0:
            return None
        return GradientSpike(name, row, largest / total, norm, times)


def row_squares(gradient: Tensor) -> Tensor:
    """[rows] float64 squared lengths; a vector, of a norm or a bias, is one row."""
    rows = gradient.float().reshape(-1, gradient.shape[-1])
    lengths: Tensor = torch.linalg.vector_norm(rows, dim=1)
    return lengths.double().square()


def main_gradient(parameter: torch.nn.Parameter) -> Tensor:
    """Where data parallelism sums it."""
    found: Tensor = parameter.main_grad  # type: ignore[attr-defined]
    return found


def gather_gradients(chunk: DistributedDataParallel) -> None:
    """Makes every rank's buffers whole: with a distributed optimizer each holds the sum of its own share."""
    for group in chunk.bucket_groups + chunk.expert_parallel_bucket_groups:
        sharing = group.intra_distributed_optimizer_instance_group
        for bucket in group.buckets:
            own = bucket.grad_data.chunk(sharing.size())[sharing.rank()].clone()
            dist.all_gather_into_tensor(bucket.grad_data, own, group=sharing)
