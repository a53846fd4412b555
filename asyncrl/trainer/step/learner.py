"""One rank's model, optimizer and schedule: makes version v + 1 out of version v and a batch.

Owns the weights. Knows no queue, no server, no file but the base model, and no feature of a step: these are
parts, which act at the stages of `part`. Gradients are summed over micro-batches and ranks, then divided once
by the global denominator: neither packing nor the number and layout of the ranks changes a step. Every rank
of the last pipeline stage computes its micro-batches' whole loss; of those that share a model, the first
counts it.
"""

import contextlib
import math
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from megatron.core import parallel_state
from torch import Tensor

from asyncrl.errors import Diverged
from asyncrl.model.layout import make_layout
from asyncrl.model.shape import ModelShape
from asyncrl.model.source import is_of_hub, model_folder
from asyncrl.model.unsampled import Unsampled
from asyncrl.recipe import Recipe
from asyncrl.records import Batch, PolicyVersion, ScoredSequence
from asyncrl.trainer.network.export import load_base, open_weights
from asyncrl.trainer.network.model import DTYPES, device, make_policy, rank_heads
from asyncrl.trainer.packing.attention_kernels import BITWISE, find_kernel
from asyncrl.trainer.packing.batch import MicroBatch, check_sampled, mini_batches, rank_micro_batches
from asyncrl.trainer.packing.columns import ReadColumns
from asyncrl.trainer.step.batch_values import max_over_ranks, sum_over_ranks
from asyncrl.trainer.step.diagnostics import MAXIMA, NUM_SUMS, TOTALS, Tally
from asyncrl.trainer.step.objective import Objective
from asyncrl.trainer.step.optimizer import (
    data_parallel,
    divide_gradients,
    gather_weights,
    make_optimizer,
    set_learning_rate,
    take_step,
)
from asyncrl.trainer.step.part import LossRecord, MiniBatch, Step, StepPart
from asyncrl.trainer.step.passes import LossOf, Passes, Result

Kind = TypeVar("Kind", bound=StepPart)


class Learner:
    """The weights of one version and what it takes to make the next."""

    def __init__(
        self, shape: ModelShape, recipe: Recipe, objective: Objective, *, unsampled: Unsampled
    ) -> None:
        """`unsampled` are the tokens that the servers never sample. `parts` is for `parts.table` to fill."""
        self.shape = shape
        self.base = model_folder(recipe.model)
        self.base_name = recipe.model.path if is_of_hub(recipe.model) else str(self.base)
        self.unsampled = unsampled
        self.section = recipe.trainer
        self.seed = recipe.seed
        self.objective = objective
        dtype = DTYPES[recipe.model.dtype]
        self.layout = make_layout(recipe)
        self.device = device()
        heads = rank_heads(shape, self.layout, dtype)
        is_bitwise = recipe.model.bitwise_agreement
        self.kernel = BITWISE if is_bitwise else find_kernel(recipe.trainer.attention, self.device, heads)
        self.model = make_policy(shape, recipe, self.layout, unsampled)
        self.base_digest: str | None = None
        """Digest of the base model that adapters belong to, once it is loaded."""
        self.parallel_chunks = data_parallel(self.model, self.layout, dtype)
        self.optimizer = make_optimizer(self.model, self.parallel_chunks, recipe.trainer, dtype)
        self.schedule = recipe.policy_schedule()
        self.passes = Passes(
            shape, recipe.trainer, dtype=dtype, device=self.device, has_adapters=self.model.lora is not None
        )
        self.parts: list[StepPart] = []

    def part(self, kind: type[Kind]) -> Kind | None:
        """The part of this class, None where the recipe has none."""
        return next((part for part in self.parts if isinstance(part, kind)), None)

    def set_schedules(self, recipe: Recipe) -> None:
        """The learning rates of later steps are those of `recipe`."""
        self.schedule = recipe.policy_schedule()
        for part in self.parts:
            part.set_schedules(recipe)

    def sent(self) -> dict[str, Any]:
        """Fields of the next `TakeRequest` that parts fill in."""
        return {name: value for part in self.parts for name, value in part.sent().items()}

    def load_base(self) -> None:
        """Version 0: the policy becomes the base model, as the models of parts are from the start."""
        self.base_digest = load_base(self.model, open_weights(self.base), self.seed)
        self.weights_changed()

    def weights_changed(self) -> None:
        """Call it after writing into the model's weights: updates the optimizer's float32 copies, if any."""
        self.optimizer.reload_model_params()

    def free_cached_memory(self) -> None:
        """Gives back what the allocator keeps of passes that are over, for the servers on the same GPU.
        Weights, gradients and optimizer stay."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def step(self, batch: Batch) -> dict[str, float]:
        """One version: one optimizer step per mini-batch; its metrics.

        A mini-batch that no token of survives takes none: no momentum, no weight decay. Nor does one whose
        gradient overflows float16. The version counts all the same, as its batch is used up, and so does its
        step of the learning rate's schedule.
        Raises Diverged when a gradient is not finite, InputError when a part refuses the batch or a response
        has a token that is never sampled.
        """
        check_sampled(batch, self.unsampled)
        for part in self.parts:
            if part.claims(batch.taken_version):
                return self._hand_over(batch, part)
        for part in self.parts:
            part.check(batch)
        step = self._begin(batch)
        for part in self.parts:
            part.prepare(step)
        self._pack(step, self.section.optimizer_steps_per_batch)
        for part in self.parts:
            part.evaluate(step)
        for part in self.parts:
            part.keep(step.version)
        self._advantages(step)
        if step.is_over:
            return self._measure(step) | step.metrics | self._reported()
        self._evaluate_proximals(step.mini_batches)
        metrics = self._optimize(step)
        for part in self.parts:
            metrics |= part.finish(metrics)
        return self.objective.reported(metrics | step.metrics | self._reported())

    def measure(self, batch: Batch) -> dict[str, float]:
        """The metrics of the loss on a batch, in one pass that leaves the policy as it is."""
        step = self._begin(batch, trains=False)
        self._pack(step, 1)
        self._advantages(step)
        return self.objective.reported(self._measure(step))

    def pack(self, batch: Batch, steps: int) -> list[list[MicroBatch]]:
        """This rank's micro-batches, by optimizer step."""
        return [
            rank_micro_batches(
                self.objective.told(part),
                budget_tokens=self.section.tokens_per_micro_batch,
                rank=parallel_state.get_data_parallel_rank(),
                num_ranks=parallel_state.get_data_parallel_world_size(),
                layout=self.layout,
                kernel=self.kernel,
                teaches=self.teaches,
                shape=self.shape,
                columns=self.columns(),
            )
            for part in mini_batches(batch, steps, seed=self.seed, order=self.section.mini_batch_order)
        ]

    def columns(self) -> ReadColumns:
        """The columns that the loss and parts read."""
        columns = [self.objective.columns(), *(part.columns() for part in self.parts)]
        return {column.name: column for own in columns for column in own}

    def teaches(self, sequence: ScoredSequence) -> bool:
        """Whether the sequence has a gradient; one that does not is only measured."""
        if self.objective.teaches(sequence):
            return True
        return not sequence.is_masked and any(part.teaches(sequence) for part in self.parts)

    def accumulate(self, mini: MiniBatch, tally: Tally | None = None) -> dict[str, float]:
        """Leaves the gradient of the loss over all ranks' micro-batches in the buffers; returns its metrics.

        The metrics include what `tally` already holds. Micro-batches that do not teach are only measured:
        they count in metrics and denominator.
        """
        tally = tally or Tally()
        for part in self.parts:
            part.loss_inputs(mini)
        for chunk in self.parallel_chunks:
            chunk.zero_grad_buffer()
        self.optimizer.zero_grad()

        def loss(index: int, micro: MicroBatch, outputs: tuple[Tensor, ...]) -> tuple[Tensor, LossRecord]:
            return self.objective(
                micro,
                outputs,
                proximal=mini.proximals[index] if mini.proximals else None,
                givens=mini.givens,
                index=index,
            )

        num_taught = 0 if mini.forward_only else sum(micro.teaches for micro in mini.micro_batches)
        with contextlib.ExitStack() as stack:
            for part in self.parts:
                stack.enter_context(part.passes(mini))
            mini.kept = self._teach(mini.micro_batches, num_taught, mini.temperature, loss)
        total = sum_over_ranks([kept.sums for _, kept in mini.kept], NUM_SUMS)
        largest = max_over_ranks([kept.maxima for _, kept in mini.kept], len(MAXIMA))
        tally.add(total, largest)
        for part in self.parts:
            part.accumulated(mini, tally)
        if num_taught:
            divide_gradients(self.parallel_chunks, total[TOTALS.index("denominator")])
        return tally.metrics()

    def _begin(self, batch: Batch, *, trains: bool = True) -> Step:
        def evaluate(mini: MiniBatch) -> list[tuple[Tensor, Tensor]]:
            return self.passes.both_logprobs(self.parallel_chunks, mini.micro_batches, mini.temperature)

        is_evaluated = not self.objective.is_interpolated()
        return Step(batch, evaluate, keeps_proximals=is_evaluated, trains=trains)

    def _pack(self, step: Step, num_steps: int) -> None:
        step.batch = self.objective.finished(step.batch)
        step.mini_batches = [
            MiniBatch(micro_batches, step.batch.temperature, step.version)
            for micro_batches in self.pack(step.batch, num_steps)
        ]
        for part in self.parts:
            part.packed(step)

    def _advantages(self, step: Step) -> None:
        for part in self.parts:
            part.advantages(step)
            if step.is_over:
                break

    def _hand_over(self, batch: Batch, owner: StepPart) -> dict[str, float]:
        """A step on a batch that the policy has not sampled: nothing compares the tokens with the policy."""
        batch = self.objective.finished(batch)
        for part in self.parts:
            part.keep(batch.taken_version)
        found = owner.learn(batch)
        num_tokens = sum(one.num_sampled() for one in batch.sequences)
        of_policy = {"loss": math.nan, "grad_norm": math.nan, "learning_rate": 0.0}
        return of_policy | {"num_tokens": float(num_tokens)} | found

    def _measure(self, step: Step) -> dict[str, float]:
        """The metrics of a step that leaves the policy as it is: there is no gradient, so no norm."""
        tally = Tally()
        for mini in step.mini_batches:
            mini.proximals, mini.forward_only = None, True
            metrics = self.accumulate(mini, tally)
        return metrics | {"grad_norm": math.nan, "learning_rate": 0.0}

    def _evaluate_proximals(self, minis: Sequence[MiniBatch]) -> None:
        """The first mini-batch sees the policy before the step; the others need its log-probs from then."""
        if not self.objective.is_interpolated():
            for mini in minis[1:]:
                if mini.proximals is None:
                    chunks, micro_batches = self.parallel_chunks, mini.micro_batches
                    mini.proximals = self.passes.logprobs(chunks, micro_batches, mini.temperature)

    def _optimize(self, step: Step) -> dict[str, float]:
        """An optimizer step per mini-batch, but for those that no token of survives."""
        tally, norms, last_rate, num_survivors = Tally(), list[float](), 0.0, 0.0
        for i, mini in enumerate(step.mini_batches):
            metrics = self.accumulate(mini, tally)
            if metrics["surviving_tokens"] > num_survivors:
                factor = math.prod(part.rate_factor(tally) for part in self.parts)
                rate = factor * self.schedule.rate(step.version, i)
                set_learning_rate(self.optimizer, rate, self.section, muon_share=self.schedule.muon_share)
                norm = self._take_step(step.version, metrics["loss"])
                if norm is not None:
                    last_rate = rate
                    norms.append(norm)
            num_survivors = metrics["surviving_tokens"]
        gather_weights(self.parallel_chunks)
        metrics["optimizer_steps"] = float(len(norms))
        metrics["grad_norm"] = sum(norms) / len(norms) if norms else 0.0
        metrics["learning_rate"] = last_rate
        return metrics

    def _take_step(self, version: PolicyVersion, loss: float) -> float | None:
        """An optimizer step; the gradient's norm, None where it was skipped. Raises Diverged, or what a part
        knows of it."""
        key, peak = "trainer.learning_rate", self.schedule.peak
        try:
            norm = take_step(self.optimizer, key, peak, version=version, loss=loss)
        except Diverged as error:
            for part in self.parts:
                part.diverged(error)
            raise
        for part in self.parts:
            part.stepped(norm)
        return norm

    def _reported(self) -> dict[str, float]:
        return {name: value for part in self.parts for name, value in part.report().items()}

    def _teach(
        self, micro_batches: list[MicroBatch], num_taught: int, temperature: float, loss: LossOf[Result]
    ) -> list[tuple[MicroBatch, Result]]:
        """Each micro-batch with what `loss` keeps of it, and the gradient of the first `num_taught`."""

        def measure(index: int, micro: MicroBatch, outputs: Any) -> tuple[Tensor, Result]:
            return loss(num_taught + index, micro, outputs)

        taught, silent = micro_batches[:num_taught], micro_batches[num_taught:]
        kept: list[Result] = []
        if silent:
            with torch.no_grad():
                kept = self.passes.run(self.parallel_chunks, silent, temperature, measure, forward_only=True)
        if taught:
            kept += self.passes.run(self.parallel_chunks, taught, temperature, loss, forward_only=False)
        # Nothing is kept on all pipeline stages but the last.
        return list(zip([*silent, *taught], kept, strict=True)) if kept else []
