"""A mixture of experts in a policy: routers with their biases, and experts, which are never cut.

A bias per expert of a router is a buffer, and stays in float32 whatever the model computes in: sums of small
steps would be lost.
"""

from collections.abc import Callable, Iterable, Iterator

import torch
from megatron.core.tensor_parallel import RowParallelLinear
from megatron.core.transformer.moe.router import TopKRouter
from torch import Tensor

UPDATED = "is_updated"
"""Attribute of a bias that steps change."""


def routers(model: torch.nn.Module) -> Iterator[tuple[str, TopKRouter]]:
    return ((name, module) for name, module in model.named_modules() if isinstance(module, TopKRouter))


def router_biases(model: torch.nn.Module) -> Iterator[tuple[str, Tensor]]:
    """([experts] float32 biases, by their names as buffers)."""
    for name, router in routers(model):
        if router.expert_bias is not None:
            # Wrappers of 16-bit models convert buffers, too.
            router._maintain_float32_expert_bias()
            yield f"{name}.expert_bias", router.expert_bias


def all_weights(model: torch.nn.Module) -> list[Tensor]:
    """Parameters and biases of routers: what makes up a version."""
    return [*model.parameters(), *(bias for _, bias in router_biases(model))]


def freeze_routers(model: torch.nn.Module) -> None:
    """Routers keep the weights that they are loaded with."""
    for _, router in routers(model):
        router.requires_grad_(False)


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


# Experts that a folder keeps in one tensor: families name a slice of it by the tensor's name and the expert's
# number behind it. Here a slice becomes a matrix of Megatron's, [outputs, inputs] with gate over up, and
# slices become the tensor again.
BY_TURNS = "gate_up_proj"
"""How the names of tensors begin whose outputs are gate and up by turns."""


def tensor_of(name: str) -> tuple[str, int | None]:
    """(name of the tensor in a folder, the expert whose slice `name` is of it or None)."""
    tensor, _, last = name.rpartition(".")
    return (tensor, int(last)) if last.isdecimal() else (name, None)


def fetch_part(fetch: Callable[[str], Tensor], name: str) -> Tensor:
    """The part of a parameter of this name; `fetch` gives one tensor of the folder."""
    tensor, expert = tensor_of(name)
    if expert is None:
        return fetch(name)
    # Of a mapped file this reads the slice alone.
    part = fetch(tensor)[expert].mT if fetch(tensor).ndim == 3 else fetch(tensor)[expert]
    return torch.cat([part[::2], part[1::2]]) if _is_by_turns(tensor) else part


def stack_parts(parts: Iterable[tuple[str, Tensor]], num_experts: int | None) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a folder, of parameters whose parts come expert by expert."""
    whole: Tensor | None = None
    for name, part in parts:
        tensor, expert = tensor_of(name)
        if expert is None:
            yield name, part
            continue
        assert num_experts is not None
        if _is_by_turns(tensor):
            part = torch.stack(part.chunk(2), 1).flatten(0, 1)
        part = part.mT if part.ndim == 2 else part
        if whole is None:
            whole = part.new_empty(num_experts, *part.shape)
        whole[expert] = part
        if expert == num_experts - 1:
            yield tensor, whole
            whole = None


def _is_by_turns(tensor: str) -> bool:
    return tensor.rpartition(".")[2].startswith(BY_TURNS)
