"""Settings of servers that a model or a device does not have are refused with the reason."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from fakes.gpus import row, write_nvidia_smi
from fakes.recipes import make_recipe
from fakes.shapes import seven_b_shape, tiny_shape

from asyncrl.errors import InputError
from asyncrl.model import dtype
from asyncrl.model.memory import server_memory
from asyncrl.model.shape import ModelShape
from asyncrl.model.supported import check_serving
from asyncrl.system import gpus

TINY = tiny_shape()
EXPERTS = dataclasses.replace(
    TINY, architecture="Qwen3MoeForCausalLM", num_experts=6, experts_per_token=2, expert_ffn_size=24
)


def check(shape: ModelShape = TINY, **serving: Any) -> None:
    recipe = make_recipe(Path("m"), model={"dtype": "bfloat16"}, serving=serving)
    check_serving(recipe, shape)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dtype, "has_gpu", lambda: True)


@pytest.mark.parametrize("key", [{"quantization": "fp8"}, {"kv_cache_dtype": "fp8_e5m2"}])
def test_fp8_on_a_cpu_is_refused(key: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dtype, "has_gpu", lambda: False)
    with pytest.raises(InputError, match="servers run on the CPU, .* not installed. Set serving"):
        check(**key)
    # Servers elsewhere have options of their own.
    check(**key, servers=["http://h:1"])


def test_what_cannot_be_quantised_again_is_refused(gpu: None) -> None:
    check(quantization="fp8", kv_cache_dtype="fp8_e4m3")
    for shape in (EXPERTS, dataclasses.replace(TINY, architecture="LlamaForCausalLM")):
        with pytest.raises(InputError, match=f"model.path is {shape.architecture}: .* over the last one"):
            check(shape, quantization="fp8")
        check(shape, kv_cache_dtype="fp8_e4m3")


def test_gpus_without_products_of_fp8_are_refused(
    gpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_nvidia_smi(tmp_path, [row(0)])
    monkeypatch.setenv("PATH", str(tmp_path))
    for capability in ("8.9", "12.0", "[N/A]"):
        monkeypatch.setattr(gpus, "_asked", lambda what, said=capability: {"0": said})
        check(quantization="fp8")
    monkeypatch.setattr(gpus, "_asked", lambda what: {"0": "8.6"})
    with pytest.raises(InputError, match=r"GPU 0 \(.*H100.*\) has compute capability 8.6, .* Set it to null"):
        check(quantization="fp8")
    check(kv_cache_dtype="fp8_e4m3")


def test_experts_are_dealt_evenly_where_there_are_any() -> None:
    check(EXPERTS, tensor_parallel_size=2, expert_parallel_size=2)
    with pytest.raises(InputError, match="has no experts"):
        check(tensor_parallel_size=2, expert_parallel_size=2)
    with pytest.raises(InputError, match="has 6 experts per layer, which cannot be dealt evenly"):
        check(EXPERTS, tensor_parallel_size=4, expert_parallel_size=4)


def test_groups_for_attention_beside_experts_are_refused_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = {"tensor_parallel_size": 2, "attention_data_parallel_size": 2}
    monkeypatch.setattr(dtype, "has_gpu", lambda: False)
    check(**groups)
    with pytest.raises(InputError, match="has experts, but servers run on the CPU: .* by NCCL alone"):
        check(EXPERTS, **groups)
    monkeypatch.setattr(dtype, "has_gpu", lambda: True)
    check(EXPERTS, **groups)


def test_memory_counts_fp8_as_one_byte_and_a_cache_per_group_of_ranks() -> None:
    def memory(**serving: Any) -> dict[str, int]:
        recipe = make_recipe(Path("m"), model={"dtype": "bfloat16"}, serving=serving)
        return server_memory(seven_b_shape(), recipe)

    plain, rounded = memory(), memory(quantization="fp8", kv_cache_dtype="fp8_e4m3")
    assert rounded["kv_cache"] * 2 == plain["kv_cache"]
    # Layers have 6.53 of the 7.62 billion parameters; embedding and output layer stay as they are.
    assert plain["weights"] - rounded["weights"] == pytest.approx(6.53e9, rel=1e-3)
    divided = memory(tensor_parallel_size=4)
    grouped = memory(tensor_parallel_size=4, attention_data_parallel_size=2)
    assert divided["kv_cache"] * 4 == plain["kv_cache"] == grouped["kv_cache"] * 2
    assert grouped["weights"] == divided["weights"]
