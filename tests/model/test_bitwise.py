"""Where model.bitwise_agreement is refused, with the key to change."""

import dataclasses
from pathlib import Path

import pytest

from asyncrl.errors import InputError
from asyncrl.model import dtype
from asyncrl.model.bitwise import check_bitwise
from tests.fakes.recipes import make_recipe
from tests.fakes.shapes import tiny_shape

AGREED = {"bitwise_agreement": True}


def test_dense_models_on_a_cpu_agree(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dtype, "has_gpu", lambda: True)
    check_bitwise(make_recipe(Path("m"), model=AGREED, placement={"device": "cpu"}), tiny_shape())
    check_bitwise(make_recipe(Path("m")), dataclasses.replace(tiny_shape(), num_experts=4))


def test_a_gpu_and_experts_are_refused(monkeypatch: pytest.MonkeyPatch):
    recipe = make_recipe(Path("m"), model=AGREED)
    with pytest.raises(InputError, match="has experts, .* or model.bitwise_agreement to false"):
        check_bitwise(recipe, dataclasses.replace(tiny_shape(), num_experts=4))
    with pytest.raises(InputError, match="has multipliers"):
        check_bitwise(recipe, dataclasses.replace(tiny_shape(), residual_multiplier=0.5))
    with pytest.raises(InputError, match="has layers or rotary positions that the shared kernels"):
        check_bitwise(recipe, dataclasses.replace(tiny_shape(), norm_places="behind"))
    monkeypatch.setattr(dtype, "has_gpu", lambda: True)
    with pytest.raises(InputError, match="on a GPU.* Set placement.device to cpu"):
        check_bitwise(recipe, tiny_shape())


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"serving": {"threads_per_server": 2}}, "serving.threads_per_server is 2: .* to 1, or"),
        ({"serving": {"tensor_parallel_size": 2}}, "serving.tensor_parallel_size is 2"),
        ({"trainer": {"threads_per_process": 2}}, "trainer.threads_per_process is 2"),
        ({"trainer": {"num_processes": 2, "parallel": {"tensor": 2}}}, "trainer.parallel.tensor is 2"),
        ({"trainer": {"attention": "sdpa"}}, "trainer.attention is sdpa: .* to auto, or"),
        ({"rollout": {"top_k": 20}}, "rollout.top_k is 20: .* to null, or"),
    ],
)
def test_what_sums_in_another_order_is_refused(sections: dict, said: str):
    make_recipe(Path("m"), **sections)
    with pytest.raises(InputError, match=said):
        make_recipe(Path("m"), model=AGREED, **sections)


@pytest.mark.parametrize("key", [{"quantization": "fp8"}, {"kv_cache_dtype": "fp8_e5m2"}])
def test_rounding_that_the_trainer_does_not_have_is_refused(key: dict):
    halves = {"dtype": "bfloat16"}
    make_recipe(Path("m"), model=halves, serving=key)
    (name,) = key
    with pytest.raises(InputError, match=f"serving.{name} is fp8.*: .* to null, or"):
        make_recipe(Path("m"), model=AGREED | halves, serving=key)
