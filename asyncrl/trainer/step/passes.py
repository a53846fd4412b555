"""Passes of a rank's micro-batches through a model, on Megatron's schedule: forward, and backward if asked.

Gradients are summed over micro-batches, and divided by nothing. Counts what the passes cost.
"""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor

from asyncrl.model.flops import peak_flops
from asyncrl.model.shape import ModelShape
from asyncrl.recipe import Trainer
from asyncrl.trainer.network.model import half_device
from asyncrl.trainer.packing.batch import MicroBatch
from asyncrl.trainer.ranks.freed_memory import give_back_if_scarce

Result = TypeVar("Result")
LossOf = Callable[[int, MicroBatch, Any], tuple[Tensor, Result]]
"""(index of a micro-batch, it, the model's outputs) -> (sum, what to keep)."""


class Passes:
    """Passes of one rank, and the floating-point operations of all of them."""

    def __init__(
        self,
        shape: ModelShape,
        section: Trainer,
        *,
        dtype: torch.dtype,
        device: torch.device,
        has_adapters: bool = False,
    ) -> None:
        """`shape` and `dtype` are the policy's, whose matrices have no gradient where it `has_adapters`.
        Torch's groups are there already."""
        self._shape = shape
        self._has_adapters = has_adapters
        self._tokens_per_micro_batch = section.tokens_per_micro_batch
        self._device = device
        self._forward_backward = get_forward_backward_func()
        self._peak_flops = peak_flops(section.peak_teraflops, half_device(dtype))
        self._flops = 0.0

    def run(
        self,
        chunks: list[torch.nn.Module],
        micro_batches: list[MicroBatch],
        temperature: float,
        loss: LossOf[Result],
        *,
        forward_only: bool,
        shape: ModelShape | None = None,
    ) -> list[Result]:
        """Runs Megatron's schedule; returns the result of `loss(index, micro, outputs)` for each micro-batch.

        Empty on all pipeline stages but the last. `shape` is that of the chunks, the policy's by default.
        """

        def forward(
            iterator: Iterator[tuple[int, MicroBatch]], model: torch.nn.Module
        ) -> tuple[Tensor, Callable[[Any], tuple[Tensor, Tensor, Result]]]:
            index, micro = next(iterator)
            give_back_if_scarce()
            micro = micro.to(self._device)

            def loss_func(outputs: Any) -> tuple[Tensor, Tensor, Result]:
                total, kept = loss(index, micro, outputs)
                return total, torch.zeros((), dtype=torch.int, device=total.device), kept

            return model(micro, temperature), loss_func

        # Only the policy has adapters, and it has no shape of its own here.
        trains_matrices = forward_only or shape is not None or not self._has_adapters
        flops = sum(
            micro.flops(shape or self._shape, trains_matrices=trains_matrices) for micro in micro_batches
        )
        # A backward pass is two forward passes.
        self._flops += flops / 3 if forward_only else flops
        iterators = [iter(enumerate(micro_batches)) for _ in chunks]
        is_one = len(iterators) == 1
        results: list[Result] = self._forward_backward(
            forward_step_func=forward,
            data_iterator=iterators[0] if is_one else iterators,
            model=chunks[0] if is_one else chunks,
            num_microbatches=len(micro_batches),
            seq_length=self._tokens_per_micro_batch,
            micro_batch_size=1,
            forward_only=forward_only,
        )
        return results

    def logprobs(
        self, chunks: list[torch.nn.Module], micro_batches: list[MicroBatch], temperature: float
    ) -> list[Tensor]:
        """Log-probs [T] of the tokens of each micro-batch under a model, without gradient: over the tokens
        that were sampled from, where those are not all.

        Empty on the ranks of all pipeline stages but the last, which compute no loss.
        """
        return [found for found, _ in self.both_logprobs(chunks, micro_batches, temperature)]

    def whole_logprobs(
        self, chunks: list[torch.nn.Module], micro_batches: list[MicroBatch], temperature: float
    ) -> list[Tensor]:
        """`logprobs` over all tokens, whichever were sampled from."""
        return self.logprobs(chunks, [micro.unrestricted() for micro in micro_batches], temperature)

    def with_entropies(
        self, chunks: list[torch.nn.Module], micro_batches: list[MicroBatch], temperature: float
    ) -> list[tuple[Tensor, Tensor]]:
        """(`logprobs`, entropies [T] over all tokens) of each micro-batch, in one pass."""
        return self._evaluate(chunks, micro_batches, temperature, lambda _, outputs: (outputs[0], outputs[1]))

    def both_logprobs(
        self, chunks: list[torch.nn.Module], micro_batches: list[MicroBatch], temperature: float
    ) -> list[tuple[Tensor, Tensor]]:
        """(`logprobs`, `whole_logprobs`) of each micro-batch, in one pass."""

        def keep(micro: MicroBatch, outputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
            whole = micro.whole(outputs)
            return outputs[0], outputs[0] if whole is None else whole

        return self._evaluate(chunks, micro_batches, temperature, keep)

    def _evaluate(
        self,
        chunks: list[torch.nn.Module],
        micro_batches: list[MicroBatch],
        temperature: float,
        keep: Callable[[MicroBatch, tuple[Tensor, ...]], Result],
    ) -> list[Result]:
        """The part that `keep` takes of the outputs of each micro-batch, in a pass without gradient."""

        def loss(index: int, micro: MicroBatch, outputs: tuple[Tensor, ...]) -> tuple[Tensor, Result]:
            return outputs[0].sum(), keep(micro, outputs)

        with torch.no_grad():
            return self.run(chunks, micro_batches, temperature, loss, forward_only=True)

    def utilisation(self, seconds: float) -> dict[str, float]:
        """`model_flops`, what the passes since the last call needed by all ranks, and `mfu`, their share of
        all devices' peak, unless that is unknown.

        A call of every rank; `seconds` are the wall-clock time of those passes.
        """
        flops = torch.tensor([self._flops], dtype=torch.float64, device=self._device)
        dist.all_reduce(flops, group=parallel_state.get_data_parallel_group())
        self._flops = 0.0
        found = {"model_flops": flops.item()}
        if self._peak_flops is not None:
            found["mfu"] = flops.item() / (seconds * self._peak_flops * dist.get_world_size())
        return found
