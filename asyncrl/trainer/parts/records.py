"""Records that go with the next take: measurements of the tokens of a few groups, and spikes of the gradient.

Of tokens these are importance log-ratio, entropy and advantage. The loss computes all three anyway: the
record keeps references to its tensors and copies what is asked for once, after the step. Changes no number of
the step and adds no pass. Which groups: the first ones of the batch, which are its oldest new ones (repeated
groups come last), however it is split over micro-batches and ranks. Shapes: T response tokens of one
micro-batch.
"""

import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel
from torch import Tensor

from asyncrl.algorithms.inputs import LossInputs
from asyncrl.recipe import Recipe
from asyncrl.records import GradientSpike, TrainedTokens
from asyncrl.trainer.network.convert import export_weights
from asyncrl.trainer.packing.batch import MicroBatch
from asyncrl.trainer.ranks import ranks
from asyncrl.trainer.step.learner import Learner
from asyncrl.trainer.step.part import MiniBatch, Step, StepPart

LARGEST = torch.finfo(torch.float16).max
"""65504: a log-ratio beyond it is stored as this."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """One micro-batch: [T] float16 each, where the loss ran."""

    micro: MicroBatch
    log_ratios: Tensor
    entropies: Tensor
    advantages: Tensor
    """[T] float32."""


class TokenRecord(StepPart):
    """The record of each step on this rank, which the next take sends."""

    def __init__(self, learner: Learner, recipe: Recipe) -> None:
        self._num_groups = recipe.view.groups_per_step
        self._advantages: dict[str, float] = {}
        """Trajectory to record -> its advantage."""
        self._seen: list[_Seen] = []

    def packed(self, step: Step) -> None:
        sequences = step.batch.sequences
        groups = list(dict.fromkeys(_group_of(each.sequence_id) for each in sequences))
        chosen = set(groups[: self._num_groups])
        self._advantages = {
            s.sequence_id: s.advantage for s in sequences if _group_of(s.sequence_id) in chosen
        }
        self._seen = []
        for mini in step.mini_batches:

            def note(
                index: int, _: MicroBatch, outputs: tuple[Tensor, ...], __: LossInputs, mini: MiniBatch = mini
            ) -> Mapping[str, Any]:
                proximal = mini.proximals[index] if mini.proximals else None
                self.note(mini.micro_batches[index], outputs, proximal)
                return {}

            mini.givens.append(note)

    def note(self, micro: MicroBatch, outputs: tuple[Tensor, ...], proximal: Tensor | None) -> None:
        """`outputs` are log-probs and entropies [T], and perhaps more; `proximal` [T] is None where the first
        are it."""
        if not any(name in self._advantages for name in micro.lines):
            return
        # Each sequence once: ranks that share a model all know its log-probs.
        if parallel_state.get_context_parallel_rank() or parallel_state.get_tensor_model_parallel_rank():
            return
        current, entropies = (each.detach() for each in outputs[:2])
        known = current if proximal is None else proximal
        behavior = micro.behavior.to(known.device, non_blocking=True)
        log_ratios = torch.where(behavior.isfinite(), known - behavior, torch.nan)
        self._seen.append(_Seen(micro, _half(log_ratios), _half(entropies), micro.advantages))

    def sent(self) -> dict[str, Any]:
        return {"trained_tokens": self.gathered()}

    def gathered(self) -> list[TrainedTokens]:
        """The notes of all ranks since the last call, by trajectory; on the first rank alone. A call of every
        rank."""
        own = [tokens for seen in self._seen for tokens in self._of_micro_batch(seen)]
        self._seen = []
        found = ranks.gather_to_first(own)
        return sorted((each for part in found for each in part), key=lambda each: each.trajectory_id)

    def _of_micro_batch(self, seen: _Seen) -> list[TrainedTokens]:
        sizes = torch.bincount(seen.micro.line_ids.cpu(), minlength=len(seen.micro.lines)).tolist()
        parts = (seen.log_ratios, seen.entropies, seen.advantages)
        columns = zip(seen.micro.lines, *(part.cpu().split(sizes) for part in parts), strict=True)
        return [
            TrainedTokens(name, _bytes(log_ratios), _bytes(entropies), self._own_advantages(name, advantages))
            for name, log_ratios, entropies, advantages in columns
            if name in self._advantages
        ]

    def _own_advantages(self, name: str, advantages: Tensor) -> bytes | None:
        """None where every token has the advantage that the journal has of the trajectory."""
        known = torch.tensor(self._advantages[name], dtype=torch.float32)
        return None if bool((advantages == known).all()) else _bytes(_half(advantages))


def _group_of(sequence_id: str) -> str:
    return sequence_id.rpartition("-")[0]


def _half(values: Tensor) -> Tensor:
    return values.clamp(-LARGEST, LARGEST).half()


def _bytes(values: Tensor) -> bytes:
    return values.numpy().astype(np.dtype("<f2"), copy=False).tobytes()


SPIKE_FACTOR = 5.0
"""Recorded runs have norms of 0.2 to 0.7, and of 91 or more where a token with a row of zeros was sampled."""
NUM_NORMS = 32
"""Norms of the optimizer steps before, whose median is the usual one."""
FEWEST_NORMS = 4


class Spikes(StepPart):
    """Looks into each optimizer step of the policy whose gradient is a spike.

    That is a norm of SPIKE_FACTOR times the usual one. The gradient, which lies in the buffers after the
    optimizer step too, goes to the first rank one parameter at a time, as for an export. That costs about as
    much as writing a publication, and nothing in other steps. Whatever the layout, rows are those of whole
    Hugging Face tensors; under adapters those of their matrices, by peft's names: a row of lora_A is one of
    the `rank` directions. Not covered: the critic, and the first FEWEST_NORMS optimizer steps of a trainer's
    process, whose usual norm is not known yet.
    """

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
