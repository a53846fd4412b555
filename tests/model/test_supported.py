"""Settings of servers that a model or a device does not have are refused with the reason."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from fakes.gpus import row, write_nvidia_smi
from fakes.recipes import make_recipe
from fakes.shapes import seven_b_shape, tiny_shape

from asyncrl.errors import InputError
from asyncrl.model import dtype, supported
from asyncrl.model import dtype as device_module
from asyncrl.model.layout import Layout
from asyncrl.model.memory import rank_memory, server_memory
from asyncrl.model.shape import ModelShape
from asyncrl.model.supported import (
    adapter_parameters,
    check_adapters,
    check_bitwise,
    check_packages,
    check_router,
    check_serving,
    largest_matrix,
    slower_parts,
    trained_in_short,
)
from asyncrl.model.weights import num_parameters
from asyncrl.recipe import Recipe
from asyncrl.recipe.sections.model import Lora
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


QWEN_7B = seven_b_shape()


def test_the_adapters_of_a_published_model_are_as_many_as_those_of_peft():
    # Printed by peft for Qwen2.5-7B with rank 8 on all linear layers: 20,185,088.
    assert adapter_parameters(QWEN_7B, Lora(rank=8)) == (20_185_088, 0)
    assert trained_in_short(Lora(rank=8), QWEN_7B).startswith("20,185,088 parameters of adapters (0.27%)")


def test_each_tensor_rank_has_a_part_of_one_matrix_and_all_of_the_other():
    shape, lora = tiny_shape(), Lora(rank=2, targets=["q_proj", "o_proj"])
    # q is [32, 32], o is [32, 32]: A and B have 2 x 32 numbers each.
    assert adapter_parameters(shape, lora) == (2 * 2 * (64 + 64), 0)
    assert adapter_parameters(shape, lora, Layout(tensor=2)) == (2 * 2 * (64 + 32), 0)
    assert adapter_parameters(shape, lora, Layout(pipeline=2)) == (2 * (64 + 64), 0)
    # Gate and up, [48, 32] each.
    assert largest_matrix(shape) == 2 * 48 * 32 == 2 * largest_matrix(shape, Layout(tensor=2))


def test_the_experts_of_a_model_are_dealt():
    shape = dataclasses.replace(tiny_shape(), num_experts=4, expert_ffn_size=16, experts_per_token=2)
    lora = Lora(rank=1, targets=["down_proj"])
    assert adapter_parameters(shape, lora) == (0, 2 * 4 * (32 + 16))
    assert adapter_parameters(shape, lora, Layout(expert=2)) == (0, 4 * (32 + 16))


def test_half_of_what_transformers_keeps_in_one_tensor_of_experts_is_refused(tmp_path: Path):
    dense = tiny_shape()
    experts = dataclasses.replace(dense, num_experts=4, expert_ffn_size=16, experts_per_token=2)
    half = make_recipe(tmp_path, model={"lora": {"rank": 1, "targets": ["up_proj", "down_proj"]}})
    check_adapters(half, dense)
    with pytest.raises(InputError, match=r"model.lora.targets has up_proj without gate_proj, .* Name both"):
        check_adapters(half, experts)
    for targets in (["gate_proj", "up_proj"], ["q_proj", "down_proj"]):
        check_adapters(make_recipe(tmp_path, model={"lora": {"rank": 1, "targets": targets}}), experts)


def test_seven_billion_parameters_with_adapters_leave_a_gpu_room_for_their_server():
    memory = rank_memory(QWEN_7B, dtype="bfloat16", tokens_per_micro_batch=16384, lora=Lora(rank=32))
    server = num_parameters(QWEN_7B) * 2 + 16 * 2**30
    assert memory.computing("full") + server < 0.9 * 80e9
    full = rank_memory(QWEN_7B, dtype="bfloat16", tokens_per_micro_batch=16384, has_reference=True)
    assert full.resident() > 1.5 * 80e9


def test_models_with_fused_matrices_take_no_adapters():
    recipe = make_recipe(Path("m"), model={"lora": {"rank": 2}})
    check_adapters(recipe, QWEN_7B)
    phi = dataclasses.replace(QWEN_7B, architecture="Phi3ForCausalLM", has_qkv_bias=False)
    with pytest.raises(InputError, match=r"Phi3ForCausalLM has matrices .* qkv_proj, gate_up_proj"):
        check_adapters(recipe, phi)
    check_adapters(make_recipe(Path("m")), phi)


def test_the_experts_of_gpt_oss_take_none():
    experts = dataclasses.replace(tiny_shape(), num_experts=4, expert_ffn_size=16, experts_per_token=2)
    shape = dataclasses.replace(
        experts, architecture="GptOssForCausalLM", has_linear_biases=True, has_sinks=True
    )
    attention = ["q_proj", "k_proj", "v_proj", "o_proj"]
    check_adapters(make_recipe(Path("m"), model={"lora": {"rank": 2, "targets": attention}}), shape)
    with pytest.raises(
        InputError, match=r"has gate_proj, up_proj, down_proj, .* \[q_proj, k_proj, v_proj, o_proj\]"
    ):
        check_adapters(make_recipe(Path("m"), model={"lora": {"rank": 2}}), shape)
    # q and o, [32, 32] each, k and v, [16, 32] each, in two layers.
    lora = Lora(rank=1, targets=attention)
    assert adapter_parameters(shape, lora) == (2 * (2 * (32 + 32) + 2 * (16 + 32)), 0)


SPARSE = dataclasses.replace(
    tiny_shape(), architecture="Qwen3MoeForCausalLM", num_experts=4, expert_ffn_size=16, experts_per_token=2
)
BIASED = dataclasses.replace(
    SPARSE, architecture="Glm4MoeForCausalLM", router_scores="sigmoid", has_router_bias=True
)


def recipe_of(**router: object) -> Recipe:
    return make_recipe(Path("m"), trainer={"router": router})


def test_frozen_routers_are_for_models_with_experts():
    for shape in (SPARSE, BIASED):
        check_router(recipe_of(frozen=True), shape)
    with pytest.raises(
        InputError, match=r"trainer.router.frozen is true, but Qwen3ForCausalLM has no experts"
    ):
        check_router(recipe_of(frozen=True), tiny_shape())


def test_biases_that_follow_loads_are_for_routers_that_have_some():
    check_router(recipe_of(bias_update_rate=0.001), BIASED)
    for shape in (tiny_shape(), SPARSE):
        sentence = (
            f"bias_update_rate is 0.001, but {shape.architecture} has no routers with a bias per expert"
        )
        with pytest.raises(InputError, match=sentence):
            check_router(recipe_of(bias_update_rate=0.001), shape)


def test_a_recipe_that_leaves_routers_alone_is_for_any_model():
    for shape in (tiny_shape(), SPARSE, BIASED):
        check_router(recipe_of(), shape)


@pytest.mark.parametrize("shape", [SPARSE, BIASED])
def test_one_expert_per_token_is_refused_where_its_weight_is_divided_by_itself(shape: ModelShape):
    one = dataclasses.replace(shape, experts_per_token=1)
    with pytest.raises(InputError, match=r"m: num_experts_per_tok is 1, .* makes every weight 1"):
        check_router(recipe_of(), one)
    check_router(recipe_of(), dataclasses.replace(one, are_expert_weights_normalised=False))


PLAIN_EXPERTS = dataclasses.replace(TINY, num_experts=6, experts_per_token=2, expert_ffn_size=24)
OPTIONS = [
    ("exp_avg_dtype", "bfloat16", "float32"),
    ("exp_avg_sq_dtype", "bfloat16", "float32"),
    ("optimizer_cpu_offload", True, "false"),
]


def pretend(monkeypatch: pytest.MonkeyPatch, *, gpu: bool, engine: bool) -> None:
    monkeypatch.setattr(device_module, "has_gpu", lambda: gpu)
    monkeypatch.setattr(supported, "has_transformer_engine", lambda: engine)


def check_state(
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
    assert "one after the other, 6 in each of 2 layers" in slower(PLAIN_EXPERTS)
    assert "rotary" in slower(TINY) and "apex" in slower(TINY) and "experts" not in slower(TINY)
    assert not slower(PLAIN_EXPERTS, placement={"device": "cpu"})
    check_state(PLAIN_EXPERTS)
    pretend(monkeypatch, gpu=True, engine=True)
    assert "Transformer Engine" not in slower(PLAIN_EXPERTS) and "apex" in slower(PLAIN_EXPERTS)
    monkeypatch.setattr(supported, "has_fused_weight_gradients", lambda: True)
    assert not slower(PLAIN_EXPERTS)
    pretend(monkeypatch, gpu=False, engine=False)
    assert not slower(PLAIN_EXPERTS)


@pytest.mark.parametrize(("key", "value", "default"), OPTIONS)
def test_options_of_adams_states_are_refused_where_they_do_not_work(
    key: str, value: object, default: str, monkeypatch: pytest.MonkeyPatch
):
    pretend(monkeypatch, gpu=False, engine=True)
    with pytest.raises(InputError, match=f"{key} is .*trains on a CPU.* Or set trainer.{key} to {default}"):
        check_state(**{key: value})
    pretend(monkeypatch, gpu=True, engine=False)
    with pytest.raises(InputError, match=f"{key} is .*Transformer Engine, which is not installed: install"):
        check_state(**{key: value})
    pretend(monkeypatch, gpu=True, engine=True)
    with pytest.raises(InputError, match="set trainer.parallel.distributed_optimizer"):
        check_state(parallel={"distributed_optimizer": False}, **{key: value})
    with pytest.raises(InputError, match="for models in bfloat16, and model.dtype is float32"):
        check_state(dtype="float32", **{key: value})
    check_state(**{key: value})


def test_states_in_host_memory_are_float32(monkeypatch: pytest.MonkeyPatch):
    pretend(monkeypatch, gpu=True, engine=True)
    with pytest.raises(InputError, match="states in host memory are float32"):
        check_state(optimizer_cpu_offload=True, exp_avg_dtype="bfloat16")
    check_state(exp_avg_sq_dtype="bfloat16", exp_avg_dtype="bfloat16")
