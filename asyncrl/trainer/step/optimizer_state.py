"""State of Megatron's optimizers, per parameter and in place, and their loss scale: checkpoints hold both.

A distributed optimizer holds a range of each flattened parameter, any other one all of it. Adam counts its
steps per parameter (torch) or per group (Transformer Engine, apex); all counts are the same. Muon, which has
no use for a count, holds its momentum.

The loss scale of a model in float16 is a power of two that keeps gradients inside the type's range. Losses
are sums over tokens, so scales are small: what others multiply a mean over n tokens by, divided by n.
Gradients are unscaled in float32 before they are clipped. One that overflowed takes no optimizer step, and
the next one has half the scale. Megatron gives each optimizer that it chains a scale of its own, and these
would drift apart where one overflows alone; here all optimizers of a model share one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypedDict

import torch
from megatron.core.optimizer import DistributedOptimizer
from megatron.core.optimizer.cpu_offloading.hybrid_optimizer import HybridDeviceOptimizer
from megatron.core.optimizer.grad_scaler import DynamicGradScaler
from torch import Tensor

from asyncrl.recipe import Trainer
from asyncrl.recipe.sections.trainer import SMALLEST_LOSS_SCALE
from asyncrl.trainer.network.model import DTYPES


class LossScaling(TypedDict):
    """State of a scale, as checkpoints hold it."""

    scale: float
    steps_since_change: int
    """Optimizer steps without overflow since the scale changed."""


class LossScaler(DynamicGradScaler):
    """Megatron's dynamic scale, changed once per optimizer step, whatever number of optimizers see it."""

    def __init__(self, section: Trainer) -> None:
        super().__init__(
            initial_scale=section.first_loss_scale(),
            min_scale=SMALLEST_LOSS_SCALE,
            growth_factor=2.0,
            backoff_factor=0.5,
            growth_interval=section.loss_scale_growth_steps,
            # A second overflow would cost another batch of rollouts.
            hysteresis=1,
        )
        self._has_overflowed = False

    def update(self, found_inf: bool) -> None:
        """Megatron's call, of each chained optimizer; the same on all ranks."""
        self._has_overflowed |= found_inf

    def settle(self) -> bool:
        """After an optimizer's `step`: whether the gradient overflowed, so that it was none. Sets the scale
        of the next."""
        has_overflowed, self._has_overflowed = self._has_overflowed, False
        super().update(has_overflowed)
        return has_overflowed

    def value(self) -> float:
        """The scale of the next optimizer step."""
        return float(self._scale.item())

    def state(self) -> LossScaling:
        return LossScaling(scale=self.value(), steps_since_change=self._growth_tracker)

    def restore(self, state: LossScaling) -> None:
        self._scale.fill_(state["scale"])
        self._growth_tracker = state["steps_since_change"]


def share_loss_scaler(optimizer: Any, section: Trainer) -> None:
    """Gives all members of Megatron's optimizer one scale, before any step."""
    scaler = LossScaler(section)
    for member in optimizer.chained_optimizers:
        member.grad_scaler = scaler


def loss_scaler(optimizer: Any) -> LossScaler | None:
    """The scale that `optimizer` has; None where its model is not in float16."""
    members = getattr(optimizer, "chained_optimizers", [optimizer])
    found = getattr(members[0], "grad_scaler", None)
    return found if isinstance(found, LossScaler) else None


def state_settings(section: Trainer) -> dict[str, Any]:
    """Megatron's settings of where Adam's states are and in which type; `check_packages` says what works."""
    types = {"exp_avg_dtype": section.exp_avg_dtype, "exp_avg_sq_dtype": section.exp_avg_sq_dtype}
    if not section.optimizer_cpu_offload and set(types.values()) == {"float32"}:
        return {}
    return {
        "use_precision_aware_optimizer": True,
        # Checkpoints hold whole float32 weights, which other layouts and settings can load.
        "store_param_remainders": False,
        "optimizer_cpu_offload": section.optimizer_cpu_offload,
        "optimizer_offload_fraction": float(section.optimizer_cpu_offload),
        **{key: DTYPES[name] for key, name in types.items()},
    }


STEP = "step"
NAMES = {"master_param": "param"}
"""Transformer Engine's and Megatron's name of the float32 copy -> ours."""


@dataclass(frozen=True, slots=True)
class HeldState:
    """Optimizer state of one parameter on this rank."""

    begin: int
    end: int
    """The range of the flattened parameter that is held."""
    num_ranks: int
    """Data-parallel ranks that hold a range each; 1 where every rank holds all."""
    tensors: dict[str, Tensor]
    """Adam's moments or Muon's momentum by torch's names, [end - begin] elements each; where the model
    computes in another type, "param" in float32 too."""


def held_states(optimizer: Any) -> dict[Tensor, HeldState]:
    """By the model's parameter. State is made where no step has made it yet."""
    found = {}
    for member in _members(optimizer):
        _make_state(member)
        for parameter, main, begin, end in _pairs(member):
            state = member.optimizer.state[main]
            tensors = {NAMES.get(name, name): tensor for name, tensor in state.items() if name != STEP}
            if main.untyped_storage().data_ptr() != parameter.untyped_storage().data_ptr():
                tensors["param"] = main.detach()
            is_distributed = isinstance(member, DistributedOptimizer)
            num_ranks = member.data_parallel_group.size() if is_distributed else 1
            found[parameter] = HeldState(begin, end, num_ranks, tensors)
    return found


def adam_steps(optimizer: Any) -> int:
    """How many steps Adam has taken; on a rank that holds nothing 0."""
    counts = [0]
    for member in _members(optimizer):
        counts += [int(state[STEP]) for state in member.optimizer.state.values() if STEP in state]
        counts += [int(group[STEP]) for group in member.optimizer.param_groups if STEP in group]
    return max(counts)


def set_adam_steps(optimizer: Any, count: int) -> None:
    """After `held_states`, which makes the counters."""
    for member in _members(optimizer):
        for state in member.optimizer.state.values():
            if STEP in state:
                state[STEP].fill_(count)
        if not isinstance(member.optimizer, torch.optim.AdamW | torch.optim.Muon):
            for group in member.optimizer.param_groups:
                group[STEP] = count


def reset_state(optimizer: Any) -> None:
    """Moments and count as before the first step; float32 weights stay."""
    for state in held_states(optimizer).values():
        for name, tensor in state.tensors.items():
            if name != "param":
                tensor.zero_()
    set_adam_steps(optimizer, 0)


def _members(optimizer: Any) -> list[Any]:
    """The optimizers that Megatron chained; one is empty on a rank without parameters of its kind."""
    members = getattr(optimizer, "chained_optimizers", [optimizer])
    return [member for member in members if member.optimizer is not None]


def _pairs(member: Any) -> Iterator[tuple[Tensor, Tensor, int, int]]:
    """(parameter of the model, what the inner optimizer updates, the range that it is of the parameter)."""
    if isinstance(member, DistributedOptimizer):
        for parameter, (group, place) in member.model_param_group_index_map.items():
            held = member._get_model_param_range_map(parameter)["param"]
            yield parameter, member.optimizer.param_groups[group]["params"][place], held.start, held.end
        return
    parameters = _model_parameters(member)
    for group in member.optimizer.param_groups:
        for main in group["params"]:
            parameter = parameters.get(main, main)
            yield parameter, main, 0, parameter.numel()


def _model_parameters(member: Any) -> dict[Tensor, Tensor]:
    """By their float32 copies, where there are any."""
    copies = getattr(member, "fp32_from_float16_groups", [])
    models = getattr(member, "float16_groups", [])
    return {
        main: parameter
        for mains, parameters in zip(copies, models, strict=True)
        for main, parameter in zip(mains, parameters, strict=True)
    }


def _make_state(member: Any) -> None:
    """As the first step would."""
    if isinstance(member.optimizer, HybridDeviceOptimizer):
        return _make_offloaded_state(member.optimizer)
    if member.config.use_precision_aware_optimizer:
        return _make_precise_state(member.optimizer)
    member.init_state_fn(member.optimizer, member.config)
    if not isinstance(member.optimizer, torch.optim.AdamW):
        return
    for parameter, state in member.optimizer.state.items():
        if STEP not in state:
            # Where torch's fused kernel wants it.
            state[STEP] = torch.zeros((), device=parameter.device)


def _make_offloaded_state(optimizer: Any) -> None:
    """Makes the state of an optimizer on the host, which has one of torch's for its float32 copies.
    Megatron's own way is a step on random gradients, which moves the weights."""
    if optimizer.state:
        return
    for each in optimizer.sub_optimizers:
        for group in each.param_groups:
            for copy in group["params"]:
                moments = {name: torch.zeros_like(copy) for name in ("exp_avg", "exp_avg_sq")}
                each.state[copy] = {STEP: torch.zeros(()), **moments}
    optimizer._sync_sub_optimizers_state_to_hdo()


def _make_precise_state(optimizer: Any) -> None:
    """Makes Transformer Engine's Adam state, with an argument of 2.1 that Megatron-core 0.16.1 omits."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if not optimizer.state[parameter]:
                optimizer.initialize_state(parameter, store_param_remainders=False)
