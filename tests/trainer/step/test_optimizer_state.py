"""The state of optimizers that have taken no step, before a checkpoint is read into it.

`test_layouts.py` resumes with torch's Adam. Here are those that need a GPU to take a step.
"""

import dataclasses
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from megatron.core.optimizer import OptimizerConfig
from megatron.core.optimizer.cpu_offloading.hybrid_optimizer import HybridDeviceOptimizer
from torch import Tensor

from asyncrl.recipe import Trainer
from asyncrl.trainer.step.optimizer_state import adam_steps, held_states, set_adam_steps, state_settings


class PreciseAdam:
    """Transformer Engine 2.15's FusedAdam with master weights, as far as a state is made."""

    def __init__(self, parameters: list[Tensor]) -> None:
        self.param_groups: list[dict[str, Any]] = [{"params": parameters}]
        self.state: dict[Tensor, dict[str, Tensor]] = defaultdict(dict)

    def initialize_state(self, param: Tensor, store_param_remainders: bool) -> None:
        assert not store_param_remainders
        for name in ("exp_avg", "exp_avg_sq"):
            self.state[param][name] = torch.zeros_like(param)
        self.state[param]["master_param"] = param.detach().float()


def weights() -> list[Tensor]:
    return [torch.randn(3, 4).bfloat16().requires_grad_(), torch.randn(5).bfloat16().requires_grad_()]


def on_the_host(parameters: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> HybridDeviceOptimizer:
    # It asks for streams as it is made.
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    return HybridDeviceOptimizer(
        parameters,
        offload_fraction=1.0,
        cpu_optimizer_cls=torch.optim.AdamW,
        gpu_optimizer_cls=torch.optim.AdamW,
        param_update_in_fp32=True,
        overlap_cpu_optimizer_d2h_h2d=False,
        lr=0.1,
    )


@pytest.mark.parametrize("kind", ["on the host", "in smaller types"])
def test_a_state_that_is_made_for_reading_moves_no_weight_and_is_read_in_place(
    kind: str, monkeypatch: pytest.MonkeyPatch
):
    parameters = weights()
    before = [parameter.detach().clone() for parameter in parameters]
    inner: Any = on_the_host(parameters, monkeypatch) if kind == "on the host" else PreciseAdam(parameters)
    member = SimpleNamespace(optimizer=inner, config=SimpleNamespace(use_precision_aware_optimizer=True))

    states = held_states(member)

    for parameter, kept in zip(parameters, before, strict=True):
        assert torch.equal(parameter, kept)
        tensors = states[parameter].tensors
        assert tensors.keys() == {"exp_avg", "exp_avg_sq", "param"}
        assert not tensors["exp_avg"].any() and not tensors["exp_avg_sq"].any()
        assert tensors["param"].dtype == torch.float32
        assert torch.equal(tensors["param"], kept.float())
        tensors["exp_avg"].fill_(2.0)
        tensors["param"].fill_(3.0)
    # Asked again it is the same state, and what steps hold it.
    again = held_states(member)
    assert all(again[parameter].tensors["exp_avg"].eq(2.0).all() for parameter in parameters)
    set_adam_steps(member, 7)
    assert adam_steps(member) == 7
    if kind == "on the host":
        steps = [state["step"] for each in inner.sub_optimizers for state in each.state.values()]
        copies = [copy for each in inner.sub_optimizers for copy in each.state]
        assert [int(step) for step in steps] == [7, 7]
        assert all(copy.eq(3.0).all() for copy in copies)


@pytest.mark.parametrize(
    ("keys", "types", "offloaded"),
    [
        ({"exp_avg_dtype": "bfloat16"}, (torch.bfloat16, torch.float32), 0.0),
        ({"exp_avg_sq_dtype": "bfloat16"}, (torch.float32, torch.bfloat16), 0.0),
        ({"optimizer_cpu_offload": True}, (torch.float32, torch.float32), 1.0),
    ],
)
def test_megatron_is_asked_for_smaller_states_or_states_on_the_host(
    keys: dict, types: tuple[torch.dtype, torch.dtype], offloaded: float
):
    settings = state_settings(Trainer(**keys))
    assert settings.keys() <= {field.name for field in dataclasses.fields(OptimizerConfig)}
    assert settings["use_precision_aware_optimizer"] and not settings["store_param_remainders"]
    assert (settings["exp_avg_dtype"], settings["exp_avg_sq_dtype"]) == types
    assert settings["optimizer_offload_fraction"] == offloaded == float(settings["optimizer_cpu_offload"])


def test_by_default_it_is_asked_for_neither():
    assert state_settings(Trainer()) == {}
