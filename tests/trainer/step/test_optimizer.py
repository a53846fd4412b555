"""What Megatron's optimizer is asked for; `test_layouts.py` and `test_learner.py` take its steps."""

import dataclasses

import pytest
import torch
from megatron.core.optimizer import OptimizerConfig

from asyncrl.recipe import Trainer
from asyncrl.trainer.step.optimizer_state import state_settings


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
