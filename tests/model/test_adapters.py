"""Counts of adapter parameters from shapes alone; the trainer's own are compared in tests/trainer/step."""

import dataclasses
from pathlib import Path

import pytest
from fakes.recipes import make_recipe
from fakes.shapes import seven_b_shape, tiny_shape

from asyncrl.errors import InputError
from asyncrl.model.adapters import adapter_parameters, check_adapters, largest_matrix, trained_in_short
from asyncrl.model.layout import Layout
from asyncrl.model.memory import rank_memory
from asyncrl.model.weights import num_parameters
from asyncrl.recipe.lora import Lora

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
