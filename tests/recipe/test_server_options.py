"""Options of servers: only those that leave tokens, log-probs, versions and weights alone are taken."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from fakes.recipes import make_recipe

from asyncrl.errors import InputError
from asyncrl.recipe import Recipe
from asyncrl.recipe.file import load_recipe
from asyncrl.recipe.sections.serving import Serving
from asyncrl.recipe.server_options import ALLOWED, KEYS, REFUSED, UNUSED, refuse_options

RECIPE = "name: t\nmodel: {path: m}\ndata: {train: d.jsonl, heldout: h.jsonl}\n"


def test_options_for_memory_kernels_and_logs_are_taken_with_their_values() -> None:
    given = ["--mem-fraction-static", "0.3", "--attention-backend=fa3", "--disable-cuda-graph"]
    assert Serving(extra_arguments=given).extra_arguments == given


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--speculative-algorithm", "EAGLE"], "one token per pass"),
        (
            ["--log-level=debug", "--speculative-num-steps=3"],
            "--speculative-num-steps: .* one token",
        ),
        (["--enable-symm-mem"], "NCCL's switches"),
        (["--enable-nccl-nvls"], "NCCL's switches"),
        (["--moe-a2a-backend", "deepep"], "NCCL's switches"),
        (["--base-gpu-id", "1"], "set placement.servers"),
        (["--gpu-id-step=2"], "set placement.servers"),
        (["--max-total-tokens", "9"], "set serving.max_total_tokens"),
        (["--tp-size", "2"], "set serving.tensor_parallel_size"),
        (["--quantization", "fp8"], "set serving.quantization"),
        (["--kv-cache-dtype=fp8_e5m2"], "set serving.kv_cache_dtype"),
        (["--ep", "2"], "set serving.expert_parallel_size"),
        (["--attn-dp-size", "2"], "set serving.attention_data_parallel_size"),
        (["--dp-size", "2"], "set serving.num_servers"),
        (["--disaggregation-mode", "prefill"], "a request would pass through two servers"),
        (["--enable-hierarchical-cache"], "kept apart by version"),
        (["--enable-eplb"], "a publish must reach each copy"),
        (["--load-format", "dummy"], "weights come from publications"),
        (["--pp-size", "2"], "broadcast to tensor ranks alone"),
        (["--enable-lora"], "adapters are merged"),
        (["--config", "more.yaml"], "nothing would check"),
        (["1"], "expected an option"),
    ],
)
def test_others_are_refused_with_the_reason(tmp_path: Path, options: list[str], said: str) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    with pytest.raises(InputError, match=said):
        load_recipe(tmp_path / "recipe.yaml", [f"serving.extra_arguments={options}"])


def test_no_allowed_option_is_refused_or_set_by_a_key() -> None:
    refuse_options(sorted(ALLOWED))
    assert not ALLOWED & KEYS.keys()
    beginnings = [*REFUSED, *UNUSED]
    assert not [option for option in ALLOWED for beginning in beginnings if option.startswith(beginning)]


def test_keys_that_options_stand_for_are_keys_of_the_recipe() -> None:
    recipe = Recipe.model_validate(yaml.safe_load(RECIPE))
    for key in KEYS.values():
        value: object = recipe
        for name in key.split("."):
            value = getattr(value, name)


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
