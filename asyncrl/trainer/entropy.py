"""The entropy of softmax(logits / temperature) with its gradient, also over a vocabulary cut over ranks.

Shapes: T response tokens, V this rank's part of the vocabulary.
"""

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor


def token_entropies(logits: Tensor, temperature: float) -> Tensor:
    """[T, V] -> [T] float32 in nats, with gradient."""
    return _VocabularyEntropy.apply(
        logits.float() / temperature, parallel_state.get_tensor_model_parallel_group()
    )


class _VocabularyEntropy(torch.autograd.Function):
    """H = -sum p log p; dH / dlogit = -p (log p + H). One [T, V] tensor is kept for the gradient."""

    @staticmethod
    def forward(context, logits: Tensor, group: dist.ProcessGroup) -> Tensor:
        largest = _over_ranks(logits.amax(-1, keepdim=True), group, dist.ReduceOp.MAX)
        shifted = logits - largest
        total = _over_ranks(shifted.exp().sum(-1, keepdim=True), group, dist.ReduceOp.SUM)
        logprobs = shifted - total.log()
        entropies = _over_ranks(torch.special.entr(logprobs.exp()).sum(-1), group, dist.ReduceOp.SUM)
        context.save_for_backward(logprobs, entropies)
        return entropies

    @staticmethod
    def backward(context, gradient: Tensor) -> tuple[Tensor, None]:
        logprobs, entropies = context.saved_tensors
        return -(gradient[:, None] * logprobs.exp() * (logprobs + entropies[:, None])), None


def _over_ranks(values: Tensor, group: dist.ProcessGroup, operation: dist.ReduceOp) -> Tensor:
    if dist.get_world_size(group) > 1:
        dist.all_reduce(values, op=operation, group=group)
    return values
