"""Parameters of experts, whose gradients are summed over all their copies."""

import torch


def sum_over_copies(model: torch.nn.Module) -> None:
    """Gradients of experts are summed over all ranks that have a copy, also over tensor ranks.

    Each tensor rank sends its own part of the tokens to experts, which are never cut. Megatron-core 0.16.1
    marks experts for a sum over their copies only where they are dealt; where every rank has them all, it
    would sum over data-parallel ranks alone, and the copies of the tensor ranks would drift apart. 0.19.2
    marks them there too.
    """
    for name, parameter in model.named_parameters():
        if is_of_expert(name):
            parameter.allreduce = False  # type: ignore[attr-defined]


def is_of_expert(name: str) -> bool:
    """Whether a parameter of this name, Megatron's or Hugging Face's, belongs to an expert that is routed
    to."""
    return ".experts." in name
