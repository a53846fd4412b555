"""Sums and maxima over all micro-batches of a step and all ranks."""

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from asyncrl.trainer.network.model import device


def sum_over_ranks(own: list[Tensor], size: int) -> Tensor:
    """[size] float64 on every rank: the sum of all ranks' `own`, each sequence counted once.

    `own` is empty on all pipeline stages but the last, which compute no loss.
    """
    return _over_ranks(own, size, dist.ReduceOp.SUM)


def max_over_ranks(own: list[Tensor], size: int) -> Tensor:
    """[size] float64 on every rank: the largest of all ranks' `own`, and 0."""
    return _over_ranks(own, size, dist.ReduceOp.MAX)


def _over_ranks(own: list[Tensor], size: int, operation: dist.ReduceOp.RedOpType) -> Tensor:
    total = torch.zeros(size, dtype=torch.float64, device=device())
    # Ranks that share the sequences all know their values: only the first of them adds them.
    adds = parallel_state.get_context_parallel_rank() == parallel_state.get_tensor_model_parallel_rank() == 0
    if own and adds:
        stacked = torch.stack(own)
        total = stacked.sum(0) if operation is dist.ReduceOp.SUM else stacked.amax(0)
    if dist.get_world_size() > 1:
        dist.all_reduce(total, op=operation)
    return total
