"""Parts that need Transformer Engine are refused where it is missing; those that are slower are named."""

import dataclasses
from pathlib import Path

import pytest
from fakes.recipes import make_recipe
from fakes.shapes import tiny_shape

from asyncrl.errors import InputError
from asyncrl.model import dtype as device_module
from asyncrl.model import supported
from asyncrl.model.shape import ModelShape
from asyncrl.model.supported import check_packages, slower_parts

TINY = tiny_shape()
EXPERTS = dataclasses.replace(TINY, num_experts=6, experts_per_token=2, expert_ffn_size=24)
OPTIONS = [
    ("exp_avg_dtype", "bfloat16", "float32"),
    ("exp_avg_sq_dtype", "bfloat16", "float32"),
    ("optimizer_cpu_offload", True, "false"),
]


def pretend(monkeypatch: pytest.MonkeyPatch, *, gpu: bool, engine: bool) -> None:
    monkeypatch.setattr(device_module, "has_gpu", lambda: gpu)
    monkeypatch.setattr(supported, "has_transformer_engine", lambda: engine)


def check(
    shape: ModelShape = TINY, *, dtype: str = "bfloat16", device: str = "auto", **trainer: object
) -> None:
    sections = {"model": {"dtype": dtype}, "placement": {"device": device}}
    recipe = make_recipe(Path("unused"), trainer=trainer, **sections)
    check_packages(recipe, shape)


def test_what_is_slower_for_want_of_a_package_is_said_where_a_gpu_would_compute_it(
    monkeypatch: pytest.MonkeyPatch,
):
    def slower(shape: ModelShape, **sections: object) -> str:
        return "\n".join(slower_parts(make_recipe(Path("m"), **sections), shape))

    pretend(monkeypatch, gpu=True, engine=False)
    assert "one after the other, 6 in each of 2 layers" in slower(EXPERTS)
    assert "rotary" in slower(TINY) and "apex" in slower(TINY) and "experts" not in slower(TINY)
    assert not slower(EXPERTS, placement={"device": "cpu"})
    check(EXPERTS)
    pretend(monkeypatch, gpu=True, engine=True)
    assert "Transformer Engine" not in slower(EXPERTS) and "apex" in slower(EXPERTS)
    monkeypatch.setattr(supported, "has_fused_weight_gradients", lambda: True)
    assert not slower(EXPERTS)
    pretend(monkeypatch, gpu=False, engine=False)
    assert not slower(EXPERTS)


@pytest.mark.parametrize(("key", "value", "default"), OPTIONS)
def test_options_of_adams_states_are_refused_where_they_do_not_work(
    key: str, value: object, default: str, monkeypatch: pytest.MonkeyPatch
):
    pretend(monkeypatch, gpu=False, engine=True)
    with pytest.raises(InputError, match=f"{key} is .*trains on a CPU.* Or set trainer.{key} to {default}"):
        check(**{key: value})
    pretend(monkeypatch, gpu=True, engine=False)
    with pytest.raises(InputError, match=f"{key} is .*Transformer Engine, which is not installed: install"):
        check(**{key: value})
    pretend(monkeypatch, gpu=True, engine=True)
    with pytest.raises(InputError, match="set trainer.parallel.distributed_optimizer"):
        check(parallel={"distributed_optimizer": False}, **{key: value})
    with pytest.raises(InputError, match="for models in bfloat16, and model.dtype is float32"):
        check(dtype="float32", **{key: value})
    check(**{key: value})


def test_states_in_host_memory_are_float32(monkeypatch: pytest.MonkeyPatch):
    pretend(monkeypatch, gpu=True, engine=True)
    with pytest.raises(InputError, match="states in host memory are float32"):
        check(optimizer_cpu_offload=True, exp_avg_dtype="bfloat16")
    check(exp_avg_sq_dtype="bfloat16", exp_avg_dtype="bfloat16")
