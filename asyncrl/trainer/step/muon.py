"""Muon for the matrices inside the layers, under Megatron's wrappers and chained with its Adam.

The update is that of torch.optim.Muon (Jordan 2024, kellerjordan.github.io/posts/muon), scaled to the size of
Adam's (arXiv 2502.16982). Matrices are those of Hugging Face: Megatron's q, k, v in one parameter are three,
gate and up are two. Embeddings, output layer, value head, norms and biases stay Adam's. Megatron-core's own
Muon needs the package emerging-optimizers, of which PyPI has a placeholder only.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer import (
    ChainedOptimizer,
    MegatronOptimizer,
    OptimizerConfig,
    get_megatron_optimizer,
)
from megatron.core.optimizer.optimizer import Float16OptimizerWithFloat16Params, FP32Optimizer
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from asyncrl.recipe import Trainer
from asyncrl.recipe.sections.trainer import Muon as MuonOptions
from asyncrl.trainer.network.convert import huggingface_names, merge_parts, num_parts, split_parts
from asyncrl.trainer.network.model import Policy

MOMENTUM = "momentum_buffer"
"""torch's name of the state."""
LAYERS = "decoder.layers."
NEWTON_SCHULZ_STEPS = 5
"""Iterations that make a matrix of momentum orthogonal, of three matrix products each."""


class Muon(torch.optim.Muon):
    """torch's Muon, matrix by matrix, on parameters that hold several: `num_parts` of their group."""

    def __init__(self, groups: list[dict[str, Any]], layers: TransformerConfig, section: Trainer) -> None:
        muon = section.optimizer
        assert isinstance(muon, MuonOptions)
        super().__init__(
            groups,
            lr=muon.learning_rate or section.learning_rate,
            weight_decay=section.weight_decay,
            momentum=muon.momentum,
            ns_steps=NEWTON_SCHULZ_STEPS,
            # As large as Adam's update, whatever the shape: both can have one learning rate.
            adjust_lr_fn="match_rms_adamw",
        )
        self._layers = layers

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """A step on all gradients, which every parameter must have."""
        for group in self.param_groups:
            options = {name: group[name] for name in self.defaults}
            for parameter in group["params"]:
                self._step(parameter, group["num_parts"], options)

    def _step(self, parameter: Tensor, num_parts: int, options: dict[str, Any]) -> None:
        assert parameter.grad is not None, "every matrix takes part in the loss"
        momentum = self.state[parameter][MOMENTUM]
        weights, gradients, momenta = (
            split_parts(self._layers, tensor, num_parts)
            for tensor in (parameter.detach(), parameter.grad, momentum)
        )
        inner = torch.optim.Muon(weights, **options)
        for weight, gradient, buffer in zip(weights, gradients, momenta, strict=True):
            weight.grad = gradient
            inner.state[weight][MOMENTUM] = buffer
        inner.step()
        # Interleaved parts are copies, any others views.
        if num_parts > 1:
            parameter.copy_(merge_parts(self._layers, weights))
            momentum.copy_(merge_parts(self._layers, momenta))


def make_muon(
    policy: Policy, chunks: list[DistributedDataParallel], config: OptimizerConfig, section: Trainer
) -> tuple[MegatronOptimizer, list[dict[str, Any]]]:
    """Muon chained with the Adam that `config` describes; the parameter groups of Adam.

    For layouts whose ranks hold matrices whole, and all of an optimizer's state (`Trainer` refuses others).
    """
    groups = matrix_groups(policy)
    with _frozen([parameter for group in groups for parameter in group["params"]]):
        adam = get_megatron_optimizer(config, chunks)
    inner = Muon(groups, policy.config, section)
    make_momenta(inner)
    if config.bf16:
        muon = Float16OptimizerWithFloat16Params(inner, config, None, make_momenta)
    else:
        muon = FP32Optimizer(inner, config, make_momenta)
    # Norms are summed over the pipeline stages, as for Adam.
    muon.grad_stats_parallel_group = adam.get_grad_stats_parallel_group()
    return ChainedOptimizer([muon, *adam.chained_optimizers]), adam.param_groups


def matrix_groups(policy: Policy) -> list[dict[str, Any]]:
    """The matrices inside this rank's layers, in a group for each number of parts."""
    groups: dict[int, list[Tensor]] = {}
    for chunk in policy:
        for name, parameter in chunk.named_parameters():
            if name.startswith(LAYERS) and parameter.dim() == 2 and parameter.requires_grad:
                groups.setdefault(num_parts(huggingface_names(chunk, name)), []).append(parameter)
    return [{"params": groups[number], "num_parts": number} for number in sorted(groups)]


def make_momenta(optimizer: torch.optim.Optimizer, config: OptimizerConfig | None = None) -> None:
    """The state before the first step, where there is none; `config` is of no use, but Megatron's wrappers
    give it."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if MOMENTUM not in optimizer.state[parameter]:
                optimizer.state[parameter][MOMENTUM] = torch.zeros_like(parameter, dtype=torch.float32)


@contextmanager
def _frozen(parameters: list[Tensor]) -> Iterator[None]:
    """Within, Megatron gives these to no optimizer."""
    for parameter in parameters:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)
