"""The optimizer of a model: gradients of all ranks, Adam or Muon, learning rate, steps."""

import math
from typing import Any

import torch
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.optimizer import MegatronOptimizer, OptimizerConfig, clip_grads, get_megatron_optimizer
from megatron.core.transformer.module import Float16Module
from megatron.core.utils import local_multi_tensor_l2_norm
from torch import Tensor

from asyncrl.errors import Diverged
from asyncrl.model.layout import Layout
from asyncrl.recipe import Trainer
from asyncrl.recipe.sections.trainer import SMALLEST_LOSS_SCALE
from asyncrl.records import PolicyVersion
from asyncrl.trainer.network.model import Policy
from asyncrl.trainer.step.muon import make_muon
from asyncrl.trainer.step.optimizer_state import loss_scaler, share_loss_scaler, state_settings


def data_parallel(policy: Policy, layout: Layout, dtype: torch.dtype) -> list[DistributedDataParallel]:
    """The chunks in wrappers that sum gradients over the data-parallel ranks, in float32."""
    settings = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        use_distributed_optimizer=layout.is_optimizer_distributed,
        overlap_grad_reduce=layout.overlaps_gradients,
        overlap_param_gather=layout.overlaps_weights,
        bucket_size=layout.bucket_size,
    )
    config = policy.config
    wrapped = [Float16Module(config, chunk) if dtype is not torch.float32 else chunk for chunk in policy]
    config.finalize_model_grads_func = _finalize
    chunks = [
        DistributedDataParallel(config, settings, chunk, disable_bucketing=i > 0)
        for i, chunk in enumerate(wrapped)
    ]
    if layout.overlaps_gradients:
        # Only the backward pass of the last micro-batch sends: without it, each would.
        waits = [chunk.no_sync for chunk in chunks]
        config.no_sync_func = waits if len(waits) > 1 else waits[0]
    return chunks


def _finalize(model: list[Any], num_tokens: Tensor | None = None, **options: Any) -> None:
    """Sums gradients by Megatron, without its count of tokens: it is 0 here and would be waited for."""
    finalize_model_grads(model, None, **options)


def gather_weights(chunks: list[DistributedDataParallel]) -> None:
    """Makes the weights whole after an optimizer step. A call of every rank, before the weights are read.

    Where gathering overlaps, a rank has the new values of its own share until the next forward pass.
    """
    for chunk in chunks:
        if chunk.ddp_config.overlap_param_gather:
            chunk.start_param_sync(force_sync=True)


def divide_gradients(chunks: list[DistributedDataParallel], denominator: Tensor) -> None:
    """Divides the gradients of all ranks, summed already, by a scalar float64 on the device, unless it is 0.

    Megatron's own count of tokens is int32, which sequences x max_new_tokens may exceed: it gets none.
    """
    # Read by no host: dividing waits for no device.
    factor = torch.where(denominator > 0, 1 / denominator, 1.0).float()
    for chunk in chunks:
        chunk.scale_gradients(factor)


def make_optimizer(
    policy: Policy, chunks: list[DistributedDataParallel], section: Trainer, dtype: torch.dtype
) -> MegatronOptimizer:
    """Megatron's Adam with decoupled weight decay (none on norms and biases) and gradient clipping; with
    trainer.optimizer muon for what is no matrix inside a layer."""
    settings = chunks[0].ddp_config
    if clip_grads.l2_norm_impl is local_multi_tensor_l2_norm:
        clip_grads.l2_norm_impl = _norm
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
        fp16=dtype is torch.float16,
        params_dtype=dtype,
        use_distributed_optimizer=settings.use_distributed_optimizer,
        overlap_param_gather=settings.overlap_param_gather,
        **state_settings(section),
    )
    if section.optimizer.name == "muon":
        optimizer, of_adam = make_muon(policy, chunks, config, section)
    else:
        optimizer = get_megatron_optimizer(config, chunks)
        of_adam = optimizer.param_groups
    for group in of_adam:
        # torch's loop over parameters costs a dozen small calls each; its fused kernel costs one in all.
        group["fused"] = True
    if dtype is torch.float16:
        share_loss_scaler(optimizer, section)
    if dtype is not torch.float32:
        policy.config.grad_scale_func = optimizer.scale_loss
    return optimizer


def _norm(_: int, __: Tensor, tensors: list[list[Tensor]], ___: bool) -> tuple[Tensor, None]:
    """Norm of all `tensors`, [1]. Megatron's own, for want of Transformer Engine and apex, waits for each."""
    norms = torch.stack(torch._foreach_norm([each for row in tensors for each in row]))
    return torch.linalg.vector_norm(norms)[None], None


def set_learning_rate(
    optimizer: MegatronOptimizer, rate: float, section: Trainer, *, muon_share: float = 1.0
) -> None:
    """Sets the rate of the next step, of Muon's matrices `muon_share` of it, and the weight decay, which
    norms and biases go without."""
    for group in optimizer.param_groups:
        group["lr"] = rate * muon_share if "num_parts" in group else rate
        group["weight_decay"] = section.weight_decay * group.get("wd_mult", 1.0)


def take_step(
    optimizer: MegatronOptimizer, key: str, peak: float, *, version: PolicyVersion, loss: float
) -> float | None:
    """An optimizer step of `version` on the gradient of `loss` in the buffers; its norm before clipping, or
    None where it overflowed float16: then only the loss scale has changed.

    Raises Diverged when the norm is not finite, or when no loss scale can make it so; `peak` is the value of
    `key`, the schedule's learning rate.
    """
    _, grad_norm, _ = optimizer.step()
    scaler = loss_scaler(optimizer)
    if scaler is not None:
        scale = scaler.value()
        if scaler.settle():
            if math.isfinite(loss) and scale > SMALLEST_LOSS_SCALE:
                return None
            raise Diverged(
                f"Set model.dtype to bfloat16, or lower {key}, which is {peak:g}: the gradient of step "
                f"{version + 1} is not finite at a loss scale of {scale:g}, and the loss is {loss:g}: "
                f"numbers of the passes themselves exceed float16's range of 65,504. The last checkpoint and "
                f"the published weights are intact."
            )
    if not math.isfinite(grad_norm):
        raise Diverged(
            f"Lower {key}, which is {peak:g}, or look at the batch (`asyncrl view`): the gradient norm of "
            f"step {version + 1} is {grad_norm}. The last checkpoint and the published weights are intact. "
            f"{key} may change within a run: the same command resumes from that checkpoint."
        )
    return float(grad_norm)
