"""How local servers divide and round a model: what does not work together is refused."""

from pathlib import Path
from typing import Any

import pytest
from fakes.recipes import make_recipe

from asyncrl.errors import InputError

HALVES = {"dtype": "bfloat16"}


@pytest.mark.parametrize(
    ("serving", "said"),
    [
        ({"tensor_parallel_size": 4, "attention_data_parallel_size": 3}, "Set it to a divisor of 4, or to 1"),
        ({"attention_data_parallel_size": 2}, "tensor_parallel_size is 1: .* groups of one size"),
        ({"tensor_parallel_size": 4, "expert_parallel_size": 2}, "Set it to 4 or to 1"),
        ({"quantization": "int8"}, "quantization"),
        ({"kv_cache_dtype": "fp4"}, "kv_cache_dtype"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(serving: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        make_recipe(Path("m"), model=HALVES, serving=serving)


@pytest.mark.parametrize("key", [{"quantization": "fp8"}, {"kv_cache_dtype": "fp8_e4m3"}])
def test_fp8_is_refused_beside_float32(key: dict[str, str]) -> None:
    make_recipe(Path("m"), model=HALVES, serving=key)
    with pytest.raises(InputError, match="model.dtype is float32: .* give 16 bits"):
        make_recipe(Path("m"), serving=key)


def test_the_teachers_server_is_divided_by_its_own_keys_alone() -> None:
    serving = {"tensor_parallel_size": 2, "attention_data_parallel_size": 2, "expert_parallel_size": 2}
    recipe = make_recipe(
        Path("m"),
        model=HALVES,
        serving=serving | {"quantization": "fp8", "kv_cache_dtype": "fp8_e4m3"},
        teacher={"path": "t"},
    )
    taught = recipe.of_teacher().serving
    assert (taught.attention_data_parallel_size, taught.expert_parallel_size) == (1, 1)
    assert taught.quantization is None and taught.kv_cache_dtype is None
