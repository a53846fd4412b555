"""The optimizer's state for a checkpoint that other layouts can load.

Two things must stay: whether the optimizer is distributed, and the number of expert ranks, with which
Megatron gives experts an optimizer of their own.
"""

from typing import Any

import torch
from megatron.core.optimizer import DistributedOptimizer
from torch import Tensor

StateDict = dict[str, Any]
"""Nested, by Megatron's own names."""
SHARDING = {"distrib_optim_sharding_type": "fully_reshardable"}
"""The default form cannot be written by megatron-core 0.16.1 ("flattened_range is not supported")."""


def sharded_optimizer_state(optimizer: Any, model_state: StateDict, *, is_loading: bool) -> StateDict:
    """Megatron's description of the optimizer's tensors, given that of the model's."""
    members = getattr(optimizer, "chained_optimizers", [optimizer])
    if is_loading and any(isinstance(member, DistributedOptimizer) for member in members):
        _fill_state(members)
    state: StateDict = optimizer.sharded_state_dict(
        {"model": model_state}, is_loading=is_loading, metadata=SHARDING
    )
    return state


def _fill_state(members: list[Any]) -> None:
    """torch makes Adam's moments at the first step; the distributed optimizer describes those it finds."""
    for member in members:
        if not isinstance(member.optimizer, torch.optim.AdamW):
            continue
        for group in member.optimizer.param_groups:
            for parameter in group["params"]:
                if not member.optimizer.state[parameter]:
                    member.optimizer.state[parameter] = {
                        # Where torch's fused kernel wants it.
                        "step": torch.zeros((), device=parameter.device),
                        "exp_avg": torch.zeros_like(parameter),
                        "exp_avg_sq": torch.zeros_like(parameter),
                    }


_are_steps_restored = False


def restore_adam_steps() -> None:
    """Makes the distributed optimizer load the steps that torch's AdamW counts per parameter; idempotent.

    Its loader forgets them at first (KeyError 'step'), then gives every parameter the same tensor, to which
    torch adds one per parameter: a wrong bias correction, without an error. Transformer Engine's and apex's
    Adam count per group and are left alone.
    """
    global _are_steps_restored
    if _are_steps_restored:
        return
    _are_steps_restored = True
    set_states = DistributedOptimizer._set_main_param_and_optimizer_states
    load = DistributedOptimizer.load_state_dict

    def set_with_step(self: Any, parameter: Tensor, tensors: dict[str, Any]) -> Any:
        group, place = self.model_param_group_index_map[parameter]
        state = self.optimizer.state[self.optimizer.param_groups[group]["params"][place]]
        known = {"step": state["step"]} if "step" in state else {}
        return set_states(self, parameter, known | tensors)

    def load_apart(self: Any, state: dict[str, Any]) -> Any:
        result = load(self, state)
        for each in self.optimizer.state.values():
            if "step" in each:
                each["step"] = each["step"].clone()
        return result

    DistributedOptimizer._set_main_param_and_optimizer_states = set_with_step
    DistributedOptimizer.load_state_dict = load_apart
