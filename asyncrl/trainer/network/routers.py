"""Routers of a mixture of experts: their biases, which are no parameters, and what the policy does with them.

A bias per expert stays in float32 whatever the model computes in: sums of small steps would be lost.
"""

from collections.abc import Iterator

import torch
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
