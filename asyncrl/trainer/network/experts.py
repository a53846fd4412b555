"""Experts, which are never cut: what they skip, and gradients, which are summed over all their copies."""

import torch
from megatron.core.tensor_parallel import RowParallelLinear


def skip_reduction(model: torch.nn.Module) -> None:
    """Outputs of experts are not summed over tensor ranks, where that would be a sum of one too: Megatron
    adds biases to them in place, which autograd refuses behind the sum."""
    for module in model.modules():
        if isinstance(module, RowParallelLinear) and module.is_expert:
            module.explicit_expert_comm = True


def sum_over_copies(model: torch.nn.Module) -> None:
    """Gradients of experts are summed over all ranks that have a copy, also over tensor ranks.

    Each tensor rank sends its own part of the tokens to experts, which are never cut. Megatron-core 0.16.1
    marks experts for a sum over their copies only where they are dealt; where every rank has them all, it
    would sum over data-parallel ranks alone, and the copies of the tensor ranks would drift apart. 0.19.2
    marks them there too. Biases of outputs are marked for a sum over tensor ranks, which may have other
    experts, and to count in the gradient's norm on the first of them alone: neither is right for an expert.
    """
    for name, parameter in model.named_parameters():
        if is_of_expert(name):
            parameter.allreduce = False  # type: ignore[attr-defined]
            parameter.sequence_parallel = False  # type: ignore[attr-defined]
            parameter.tensor_model_parallel = True  # type: ignore[attr-defined]


def is_of_expert(name: str) -> bool:
    """Whether a parameter of this name, Megatron's or Hugging Face's, belongs to an expert that is routed
    to."""
    return ".experts." in name
