"""One rank's model, optimizer and schedule: makes version v + 1 out of version v and a batch.

Owns the weights. Knows nothing of queues, servers or files. Gradients are summed over micro-batches and
ranks, then divided once by the global denominator: neither packing nor the number of ranks changes a step.
"""

import math
from collections.abc import Iterator

import torch
import torch.distributed as dist
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer.module import Float16Module
from torch import Tensor

from asyncrl.algorithms.advantages import finish_batch
from asyncrl.recipe import Recipe, Trainer
from asyncrl.trainer.batch import MicroBatch, mini_batches, rank_micro_batches
from asyncrl.trainer.diagnostics import Tally
from asyncrl.trainer.folder import ModelShape
from asyncrl.trainer.logprobs import token_logprobs
from asyncrl.trainer.model import DTYPES, build_model
from asyncrl.trainer.objective import Objective
from asyncrl.trainer.reference import load_reference
from asyncrl.types import Batch


class Learner:
    """The weights of one version and what it takes to make the next."""

    def __init__(self, shape: ModelShape, recipe: Recipe) -> None:
        self.shape = shape
        self.algorithm = recipe.algorithm
        self.section = recipe.trainer
        self.objective = Objective(recipe.algorithm, max_new_tokens=recipe.rollout.max_new_tokens)
        dtype = DTYPES[recipe.model.dtype]
        self.model = build_model(shape, dtype)
        self.parallel_model = _data_parallel(self.model, dtype)
        self.optimizer = make_optimizer(self.parallel_model, recipe.trainer, dtype)
        self.schedule = make_schedule(self.optimizer, recipe.trainer)
        self.reference = load_reference(shape, recipe.model) if self.objective.needs_reference() else None
        self._forward_backward = get_forward_backward_func()
        if dtype is torch.bfloat16:
            self.model.config.grad_scale_func = self.optimizer.scale_loss

    def weights_changed(self) -> None:
        """After weights were written into the model: the optimizer's float32 copies follow, if it has any."""
        self.optimizer.reload_model_params()

    def step(self, batch: Batch) -> dict[str, float]:
        """One version: one optimizer step per mini-batch; its metrics.

        Raises FloatingPointError when a gradient is not finite.
        """
        batch, tally, norms = finish_batch(batch, self.algorithm), Tally(), []
        parts = [
            rank_micro_batches(
                part,
                budget_tokens=self.section.tokens_per_micro_batch,
                rank=dist.get_rank(),
                num_ranks=dist.get_world_size(),
            )
            for part in mini_batches(batch, self.section.optimizer_steps_per_batch)
        ]
        # The first mini-batch meets the policy before the step; the others must be told what it said.
        later = [self.evaluate(self.parallel_model, part, batch.temperature) for part in parts[1:]]
        # The first step of a warm-up trains at 1 / warmup_steps of the learning rate, not at zero.
        self.schedule.step(increment=1)
        for micro_batches, proximals in zip(parts, [None, *later], strict=True):
            metrics = self.accumulate(micro_batches, batch.temperature, proximals=proximals, tally=tally)
            norms.append(self._update(batch.step))
        metrics["grad_norm"] = sum(norms) / len(norms)
        metrics["learning_rate"] = self.optimizer.param_groups[0]["lr"]
        return metrics

    def _update(self, step: int) -> float:
        """An optimizer step on the gradient in the buffers; its norm before clipping."""
        _, grad_norm, _ = self.optimizer.step()
        if not math.isfinite(grad_norm):
            raise FloatingPointError(
                f"step {step}: the gradient norm is {grad_norm}. The last checkpoint and the published "
                f"weights are intact; lower trainer.learning_rate or look at the batch in the journal."
            )
        return float(grad_norm)

    def accumulate(
        self,
        micro_batches: list[MicroBatch],
        temperature: float,
        *,
        proximals: list[Tensor] | None = None,
        tally: Tally | None = None,
    ) -> dict[str, float]:
        """Leaves the gradient of the loss over all ranks' micro-batches in the buffers; its metrics, with
        what `tally` already holds. Without `proximals` the policy as it is now is the proximal one."""
        references = self.evaluate(self.reference, micro_batches, temperature) if self.reference else None
        self.parallel_model.zero_grad_buffer()
        self.optimizer.zero_grad()

        def loss(index: int, logits: Tensor):
            return self.objective(
                micro_batches[index],
                logits,
                temperature,
                proximal=proximals[index] if proximals else None,
                reference=references[index] if references else None,
            )

        sums = self._run(self.parallel_model, micro_batches, loss, forward_only=False)
        total = torch.stack([each for each, _ in sums]).sum(0)
        largest = torch.stack([each for _, each in sums]).amax(0)
        if dist.get_world_size() > 1:
            dist.all_reduce(total)
            dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        tally = tally or Tally()
        tally.add(total, largest)
        return tally.metrics()

    def evaluate(
        self, model: torch.nn.Module, micro_batches: list[MicroBatch], temperature: float
    ) -> list[Tensor]:
        """Log-probs [T] that `model` gives to the tokens of each micro-batch, without gradient."""

        def logprobs(index: int, logits: Tensor):
            found, _ = token_logprobs(logits, micro_batches[index].targets, temperature)
            return found.sum(), torch.zeros((), dtype=torch.int), found

        with torch.no_grad():
            return self._run(model, micro_batches, logprobs, forward_only=True)

    def _run(self, model: torch.nn.Module, micro_batches: list[MicroBatch], loss, *, forward_only: bool):
        """`loss(index, logits)`'s third value for each micro-batch, through Megatron's schedule."""

        def forward(iterator: Iterator[tuple[int, MicroBatch]], model: torch.nn.Module):
            index, micro = next(iterator)
            logits = model(micro.tokens, micro.sequences, micro.predicting)
            return logits, lambda logits: loss(index, logits)

        return self._forward_backward(
            forward_step_func=forward,
            data_iterator=iter(enumerate(micro_batches)),
            model=model,
            num_microbatches=len(micro_batches),
            seq_length=self.section.tokens_per_micro_batch,
            micro_batch_size=1,
            forward_only=forward_only,
        )


def make_optimizer(model: DistributedDataParallel, section: Trainer, dtype: torch.dtype):
    """Megatron's Adam with decoupled weight decay (none on norms and biases) and gradient clipping."""
    config = OptimizerConfig(
        optimizer="adam",
        lr=section.learning_rate,
        min_lr=section.learning_rate,
        weight_decay=section.weight_decay,
        adam_beta1=section.adam_beta1,
        adam_beta2=section.adam_beta2,
        adam_eps=section.adam_epsilon,
        clip_grad=section.clip_grad_norm,
        bf16=dtype is torch.bfloat16,
        params_dtype=dtype,
        use_distributed_optimizer=False,
    )
    optimizer = get_megatron_optimizer(config, [model])
    for group in optimizer.param_groups:
        # torch's loop over parameters costs a dozen small calls each; its fused kernel costs one in all.
        group["fused"] = True
    return optimizer


def make_schedule(optimizer, section: Trainer) -> OptimizerParamScheduler:
    """Linear warm-up, then constant. It also applies each group's weight-decay multiplier."""
    return OptimizerParamScheduler(
        optimizer,
        init_lr=0.0,
        max_lr=section.learning_rate,
        min_lr=section.learning_rate,
        lr_warmup_steps=section.warmup_steps,
        lr_decay_steps=section.warmup_steps + 1,
        lr_decay_style="constant",
        start_wd=section.weight_decay,
        end_wd=section.weight_decay,
        wd_incr_steps=0,
        wd_incr_style="constant",
        use_checkpoint_opt_param_scheduler=False,
        override_opt_param_scheduler=True,
    )


def _data_parallel(model: torch.nn.Module, dtype: torch.dtype) -> DistributedDataParallel:
    wrapped = Float16Module(model.config, model) if dtype is torch.bfloat16 else model
    settings = DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=False)
    parallel = DistributedDataParallel(model.config, settings, wrapped)
    model.config.finalize_model_grads_func = finalize_model_grads
    return parallel
