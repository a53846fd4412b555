"""Models beside the policy, without gradients, optimizer or steps; the reference that the KL is taken to.

The reference is the base model, or with algorithm.reference_refresh_steps the policy of the last refresh. A
policy with adapters is its own reference: without them it is the base model.
"""

import contextlib
from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch
from megatron.core.transformer.module import Float16Module

from asyncrl.model.layout import Layout
from asyncrl.model.shape import ModelShape
from asyncrl.model.source import model_folder
from asyncrl.model.unsampled import Unsampled
from asyncrl.recipe import Model
from asyncrl.trainer.network.adapters import without_adapters
from asyncrl.trainer.network.convert import load_weights
from asyncrl.trainer.network.export import open_weights
from asyncrl.trainer.network.model import DTYPES, Policy, build_policy
from asyncrl.trainer.network.routers import all_weights


def build_frozen(
    shape: ModelShape, section: Model, layout: Layout, unsampled: Unsampled
) -> tuple[Policy, list[torch.nn.Module]]:
    """A model of the policy's shape, layout and type whose weights are still to be filled in, and this rank's
    chunks of it, to run."""
    model = build_policy(
        shape,
        DTYPES[section.dtype],
        layout,
        unsampled=unsampled,
        float32_logits=section.float32_logits,
        is_bitwise=section.bitwise_agreement,
    )
    model.requires_grad_(False)
    if section.dtype != "float32":
        return model, [Float16Module(chunk.config, chunk) for chunk in model]
    return model, list(model)


class Reference:
    """This rank's chunks; at first the model at `model.path`, as it was before any training."""

    def __init__(self, shape: ModelShape, section: Model, layout: Layout, unsampled: Unsampled) -> None:
        self.model, self.chunks = build_frozen(shape, section, layout, unsampled)
        load_weights(self.model, open_weights(model_folder(section)))

    def active(self) -> AbstractContextManager[None]:
        """Within, `chunks` compute the reference."""
        return contextlib.nullcontext()

    @torch.no_grad()
    def copy_from(self, policy: Policy) -> None:
        """Takes over the weights of `policy`, which has the same shape, layout and type."""
        for own, other in zip(all_weights(self.model), all_weights(policy), strict=True):
            own.copy_(other)


class OwnReference:
    """The policy without its adapters: no second copy of the weights."""

    def __init__(self, policy: Policy, chunks: Sequence[torch.nn.Module]) -> None:
        """`chunks` are the policy's, in whatever wrappers."""
        self._policy = policy
        self.chunks = list(chunks)

    def active(self) -> AbstractContextManager[None]:
        """Within, `chunks` compute the reference."""
        return without_adapters(self._policy)

    def copy_from(self, policy: Policy) -> None:
        raise AssertionError("a recipe with adapters refreshes no reference")


def make_reference(
    shape: ModelShape,
    section: Model,
    layout: Layout,
    unsampled: Unsampled,
    policy: Policy,
    chunks: Sequence[torch.nn.Module],
) -> Reference | OwnReference:
    """The reference of `policy`; `chunks` are the policy's, in whatever wrappers."""
    if policy.lora is not None:
        return OwnReference(policy, chunks)
    return Reference(shape, section, layout, unsampled)
