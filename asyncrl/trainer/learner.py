"""One rank's model, optimizer and schedule: makes version v + 1 out of version v and a batch.

Owns the weights. Knows nothing of queues, servers or files. Gradients are summed over micro-batches and
ranks, then divided once by the global denominator: neither packing nor the number and layout of the ranks
changes a step. Every rank of the last pipeline stage computes its micro-batches' whole loss; the first of
those that share a model counts it.
"""

import math
from collections.abc import Iterator

import torch
import torch.distributed as dist
from megatron.core import parallel_state
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

from asyncrl.algorithms.losses import LossInputs, make_loss
from asyncrl.recipe import Recipe, Trainer
from asyncrl.trainer.batch import MicroBatch, rank_micro_batches
from asyncrl.trainer.diagnostics import MAXIMA, SUMS, micro_batch_sums, step_diagnostics
from asyncrl.trainer.flops import micro_batch_flops, peak_flops
from asyncrl.trainer.folder import ModelShape
from asyncrl.trainer.layout import Layout, make_layout
from asyncrl.trainer.model import DTYPES, Policy, build_policy, device
from asyncrl.trainer.optimizer_state import restore_adam_steps
from asyncrl.types import Batch


class Learner:
    """The weights of one version and what it takes to make the next."""

    def __init__(self, shape: ModelShape, recipe: Recipe) -> None:
        self.shape = shape
        self.algorithm = recipe.algorithm
        self.section = recipe.trainer
        self.loss = make_loss(recipe.algorithm, max_new_tokens=recipe.rollout.max_new_tokens)
        dtype = DTYPES[recipe.model.dtype]
        self.layout = make_layout(recipe.trainer)
        self.model = build_policy(shape, dtype, self.layout, recompute=recipe.trainer.recompute)
        self.parallel_chunks = _data_parallel(self.model, self.layout, dtype)
        self.optimizer = make_optimizer(self.parallel_chunks, recipe.trainer, dtype)
        self.schedule = make_schedule(self.optimizer, recipe.trainer)
        self._forward_backward = get_forward_backward_func()
        self._device = device()
        self._peak_flops = peak_flops(recipe.trainer.peak_teraflops, dtype)
        self._flops = 0.0
        if dtype is torch.bfloat16:
            self.model[0].config.grad_scale_func = self.optimizer.scale_loss

    def weights_changed(self) -> None:
        """After weights were written into the model: the optimizer's float32 copies follow, if it has any."""
        self.optimizer.reload_model_params()

    def utilisation(self, seconds: float) -> dict[str, float]:
        """The share of all devices' peak that the passes since the last call used; {} of unknown devices.

        A call of every rank; `seconds` are the wall-clock time of those passes.
        """
        if self._peak_flops is None:
            return {}
        flops = torch.tensor([self._flops], dtype=torch.float64, device=self._device)
        dist.all_reduce(flops, group=parallel_state.get_data_parallel_group())
        self._flops = 0.0
        return {"mfu": flops.item() / (seconds * self._peak_flops * dist.get_world_size())}

    def step(self, batch: Batch) -> dict[str, float]:
        """One optimizer step; its metrics. Raises FloatingPointError when the gradient is not finite."""
        micro_batches = rank_micro_batches(
            batch,
            budget_tokens=self.section.tokens_per_micro_batch,
            rank=parallel_state.get_data_parallel_rank(),
            num_ranks=parallel_state.get_data_parallel_world_size(),
            layout=self.layout,
        )
        metrics = self.accumulate(micro_batches, batch.temperature)
        # The first step of a warm-up trains at 1 / warmup_steps of the learning rate, not at zero.
        self.schedule.step(increment=1)
        _, grad_norm, _ = self.optimizer.step()
        if not math.isfinite(grad_norm):
            raise FloatingPointError(
                f"step {batch.step}: the gradient norm is {grad_norm}. The last checkpoint and the published "
                f"weights are intact; lower trainer.learning_rate or look at the batch in the journal."
            )
        metrics["grad_norm"] = float(grad_norm)
        metrics["learning_rate"] = self.optimizer.param_groups[0]["lr"]
        return metrics

    def accumulate(self, micro_batches: list[MicroBatch], temperature: float) -> dict[str, float]:
        """Leaves the gradient of the loss over all ranks' micro-batches in the buffers; its metrics."""
        if self._peak_flops is not None:
            self._flops += sum(micro_batch_flops(self.shape, micro) for micro in micro_batches)
        for chunk in self.parallel_chunks:
            chunk.zero_grad_buffer()
        self.optimizer.zero_grad()
        # Ranks that share the sequences all know their loss; added up, it counts once.
        counts = int(parallel_state.get_context_parallel_rank() == 0)

        def forward(iterator: Iterator[MicroBatch], model: torch.nn.Module):
            micro = next(iterator).to(self._device)

            def loss(outputs: tuple[Tensor, Tensor]):
                total, denominator, sums = self._loss(micro, outputs)
                return total, denominator * counts, sums

            return model(micro, temperature), loss

        iterators = [iter(micro_batches) for _ in self.parallel_chunks]
        is_one = len(iterators) == 1
        sums = self._forward_backward(
            forward_step_func=forward,
            data_iterator=iterators[0] if is_one else iterators,
            model=self.parallel_chunks[0] if is_one else self.parallel_chunks,
            num_microbatches=len(micro_batches),
            seq_length=self.section.tokens_per_micro_batch,
            micro_batch_size=1,
            forward_only=False,
        )
        total, largest = (
            torch.zeros(len(names), dtype=torch.float64, device=self._device) for names in (SUMS, MAXIMA)
        )
        # Empty on all stages but the last.
        if sums and counts and parallel_state.get_tensor_model_parallel_rank() == 0:
            total = torch.stack([each for each, _ in sums]).sum(0)
            largest = torch.stack([each for _, each in sums]).amax(0)
        if dist.get_world_size() > 1:
            dist.all_reduce(total)
            dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        return step_diagnostics(total, largest)

    def _loss(self, micro: MicroBatch, outputs: tuple[Tensor, Tensor]):
        """(sum, denominator, (sums, maxima)): what Megatron's schedule adds up."""
        current, entropies = outputs
        proximal = current.detach()
        # A log-prob that is no number says nothing of its token: out of numerator and denominator, counted.
        is_finite = micro.behavior.isfinite()
        inputs = LossInputs(
            current=current,
            # One optimizer step per batch: the policy before the step is the one just evaluated.
            proximal=proximal,
            behavior=torch.where(is_finite, micro.behavior, proximal),
            advantages=micro.advantages,
            mask=is_finite,
            sequence_ids=micro.sequence_ids,
        )
        total, denominator = self.loss(inputs)
        with torch.no_grad():
            sums = micro_batch_sums(
                inputs,
                loss=total,
                denominator=denominator,
                entropies=entropies,
                lags=micro.lags,
                are_continued=micro.are_continued,
                num_packed=len(micro.tokens),
                importance_cap=self.algorithm.importance_cap,
            )
        return total, denominator.int(), sums


def make_optimizer(chunks: list[DistributedDataParallel], section: Trainer, dtype: torch.dtype):
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
        use_distributed_optimizer=section.parallel.distributed_optimizer,
    )
    restore_adam_steps()
    optimizer = get_megatron_optimizer(config, chunks)
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


def _data_parallel(policy: Policy, layout: Layout, dtype: torch.dtype) -> list[DistributedDataParallel]:
    settings = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True, use_distributed_optimizer=layout.is_optimizer_distributed
    )
    config = policy[0].config
    wrapped = [Float16Module(config, chunk) if dtype is torch.bfloat16 else chunk for chunk in policy]
    config.finalize_model_grads_func = finalize_model_grads
    return [
        DistributedDataParallel(config, settings, chunk, disable_bucketing=i > 0)
        for i, chunk in enumerate(wrapped)
    ]
