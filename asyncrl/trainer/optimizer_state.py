"""The optimizer's state for a checkpoint that other layouts can load.

Two things must stay: whether the optimizer is distributed, and the number of expert ranks, with which
Megatron gives experts an optimizer of their own.
"""

import torch
from megatron.core.optimizer import DistributedOptimizer

SHARDING = {"distrib_optim_sharding_type": "fully_reshardable"}
"""The default form cannot be written by megatron-core 0.16.1 ("flattened_range is not supported")."""


def sharded_optimizer_state(optimizer, model_state: dict, *, is_loading: bool) -> dict:
    """Megatron's description of the optimizer's tensors beside those of the model."""
    members = getattr(optimizer, "chained_optimizers", [optimizer])
    if is_loading and any(isinstance(member, DistributedOptimizer) for member in members):
        _fill_state(members)
    return optimizer.sharded_state_dict({"model": model_state}, is_loading=is_loading, metadata=SHARDING)


def _fill_state(members: list) -> None:
    """torch makes Adam's moments at the first step; the distributed optimizer describes those it finds."""
    for member in members:
        for group in member.optimizer.param_groups:
            for parameter in group["params"]:
                if not member.optimizer.state[parameter]:
                    member.optimizer.state[parameter] = {
                        "step": torch.tensor(0.0),
                        "exp_avg": torch.zeros_like(parameter),
                        "exp_avg_sq": torch.zeros_like(parameter),
                    }
