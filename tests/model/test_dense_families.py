"""Published configurations, as their config.json says them, without weights."""

import json
from pathlib import Path
from typing import Any

import pytest
from fakes.recipes import make_recipe
from families.known import TINY

from asyncrl.errors import InputError
from asyncrl.model.flops import matrix_weights
from asyncrl.model.folder import read_shape
from asyncrl.model.layout import check_layout
from asyncrl.model.memory import server_memory
from asyncrl.model.rotary import Rotation
from asyncrl.model.shape import DeltaNet, ModelShape
from asyncrl.model.weights import num_parameters


def published(architecture: str) -> dict[str, Any]:
    """The config.json of the first published model in the registry."""
    (config, _), *_ = TINY[architecture].published.values()
    return dict(config)


GEMMA2, GEMMA3 = published("Gemma2ForCausalLM"), published("Gemma3ForCausalLM")
OLMO2, OLMO3 = published("Olmo2ForCausalLM"), published("Olmo3ForCausalLM")
SMOLLM3, GLM4 = published("SmolLM3ForCausalLM"), published("Glm4ForCausalLM")
GPT_OSS = published("GptOssForCausalLM")
PHI4_MINI = dict(TINY["Phi3ForCausalLM"].published["microsoft/Phi-4-mini-instruct"][0])


def read(folder: Path, settings: dict[str, Any]) -> ModelShape:
    (folder / "config.json").write_text(json.dumps(settings))
    return read_shape(folder)


def test_gemma_slides_in_every_other_layer_and_gemma_3_in_five_of_six(tmp_path: Path) -> None:
    second, third = read(tmp_path, GEMMA2), read(tmp_path, GEMMA3)
    assert (second.window, second.sliding_layers) == (4096, tuple(range(0, 42, 2)))
    assert (second.attention_cap, second.logits_cap, second.attention_scale) == (50.0, 30.0, 1 / 16)
    assert second.is_tied and second.max_positions == 8192
    full = {layer for layer in range(26) if layer % 6 == 5}
    assert (third.window, set(third.sliding_layers)) == (512, set(range(26)) - full)
    assert (third.rotation, third.sliding_rotation) == (Rotation(1e6), Rotation(1e4))
    assert third.attention_cap is None and third.has_qk_norm


def test_olmo_3_scales_full_layers_alone(tmp_path: Path) -> None:
    shape = read(tmp_path, OLMO3)
    assert shape.rotation is not None and shape.rotation.kind == "yarn"
    assert shape.sliding_rotation == Rotation(5e5)
    assert shape.sliding_layers == tuple(i for i in range(32) if i % 4 != 3)


NESTED = {
    "full_attention": OLMO3["rope_scaling"] | {"rope_theta": 500000},
    "sliding_attention": {"rope_type": "default", "rope_theta": 500000},
}
"""The rotary positions of OLMo 3 as transformers 5 writes them."""


def test_olmo_3_as_transformers_5_writes_it_is_read_as_the_published_one(tmp_path: Path) -> None:
    bare = {key: value for key, value in OLMO3.items() if not key.startswith("rope")}
    for keys in (OLMO3, bare, bare | {"rope_theta": 500000}):
        assert read(tmp_path, keys | {"rope_parameters": NESTED}) == read(tmp_path, OLMO3)
    # transformers takes 500000 where none is written.
    assert read(tmp_path, bare).rope_theta == 500000
    plain = dict.fromkeys(NESTED, {"rope_type": "default", "rope_theta": 777.0})
    assert read(tmp_path, bare | {"rope_parameters": plain}).rope_theta == 777.0
    message = (
        r"servers would take yarn \(base 10000, .* set rope_theta to 500000.0 and rope_scaling to .*yarn"
    )
    with pytest.raises(InputError, match=message):
        read(tmp_path, OLMO3 | {"rope_parameters": NESTED, "rope_theta": 10000})


def test_sliding_layers_of_olmo_3_with_a_rotation_of_their_own_are_refused(tmp_path: Path) -> None:
    for sliding in ({"rope_theta": 10000.0}, NESTED["full_attention"]):
        with pytest.raises(InputError, match="servers rotate the latter by the base of the former, unscaled"):
            read(tmp_path, OLMO3 | {"rope_parameters": NESTED | {"sliding_attention": sliding}})


def test_phi_4_mini_is_trained_at_its_original_positions(tmp_path: Path) -> None:
    shape = read(tmp_path, PHI4_MINI)
    assert shape.max_positions == 4096 and shape.is_tied
    assert shape.rotation is not None and shape.rotation.share == 0.75
    assert dict(shape.rotation.numbers) == {"factor": 32.0, "original_max_position_embeddings": 4096.0}
    rope = PHI4_MINI["rope_scaling"]
    for changes, message in (
        ({"rope_scaling": rope | {"factor": 16.0}}, "factor of longrope is 16.0; servers take 32"),
        (
            {"rope_scaling": rope | {"partial_rotary_factor": 0.75}, "partial_rotary_factor": None},
            "servers read it beside them, where it is missing",
        ),
        ({"partial_rotary_factor": None}, "expected a list of 64 numbers"),
        ({"original_max_position_embeddings": 0}, "original_max_position_embeddings is 0, expected a whole"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "the kinds that can are default, longrope"),
    ):
        with pytest.raises(InputError, match=message):
            read(tmp_path, PHI4_MINI | changes)


def test_gpt_oss_has_sinks_and_biases_and_slides_in_every_other_layer(tmp_path: Path) -> None:
    shape = read(tmp_path, GPT_OSS)
    assert shape.has_sinks and shape.has_qkv_bias and shape.has_linear_biases
    assert (shape.window, shape.sliding_layers) == (128, tuple(range(0, 24, 2)))
    assert (shape.activation, shape.gate_limit, shape.gate_offset) == ("quick_gelu", 7.0, 1.0)
    assert shape.rotation is not None and not shape.rotation.is_truncated
    assert not shape.is_plain() and shape.max_positions == 131072


def test_every_fourth_layer_of_smollm3_is_not_rotated(tmp_path: Path) -> None:
    shape = read(tmp_path, SMOLLM3)
    assert shape.unrotated_layers == tuple(range(3, 36, 4))
    without = {key: value for key, value in SMOLLM3.items() if key != "no_rope_layers"}
    assert read(tmp_path, without) == shape


def test_glm_4_rotates_half_of_each_head_neighbor_by_neighbor(tmp_path: Path) -> None:
    shape = read(tmp_path, GLM4)
    assert shape.rotation == Rotation(1e4, share=0.5, is_interleaved=True)
    assert shape.has_qkv_bias and shape.norm_places == "both"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (GEMMA2 | {"hidden_activation": "gelu"}, "hidden_activation"),
        (GEMMA2 | {"layer_types": ["full_attention"] * 42}, "layer_types"),
        (GEMMA3 | {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        (GEMMA3 | {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        (GEMMA3 | {"rope_parameters": {"rope_theta": 1e6}}, "expected an entry for full_attention"),
        (OLMO3 | {"layer_types": OLMO3["layer_types"][:-1]}, "layer_types has 31 entries"),
        (OLMO2 | {"layer_types": ["sliding_attention"] * 32}, "only full_attention can be trained"),
        (SMOLLM3 | {"use_sliding_window": True}, "use_sliding_window"),
        (
            GPT_OSS | {"quantization_config": {"quant_method": "mxfp4"}},
            r"quantized \(mxfp4\).* conversion to BF16",
        ),
        (GPT_OSS | {"attention_bias": False}, "attention_bias is false; only true"),
        (GPT_OSS | {"swiglu_alpha": 1.0}, "swiglu_alpha"),
        (GPT_OSS | {"rope_scaling": None}, "neither rope_parameters nor rope_scaling"),
    ],
)
def test_a_setting_that_servers_or_the_trainer_lack_is_refused(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        read(tmp_path, settings)


PUBLISHED, NUM_PARAMETERS = TINY["Qwen3NextForCausalLM"].published["Qwen/Qwen3-Next-80B-A3B-Instruct"]


def read_next(folder: Path, **settings: Any) -> ModelShape:
    config = {key: value for key, value in {**PUBLISHED, **settings}.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(config))
    return read_shape(folder)


def test_the_published_model_has_80_billion_parameters_of_which_a_token_meets_3(tmp_path: Path) -> None:
    shape = read_next(tmp_path)
    assert num_parameters(shape) == NUM_PARAMETERS
    assert 3.0e9 < matrix_weights(shape) < 3.7e9
    assert shape.delta_net == DeltaNet(16, 32, 128, 128, 4)
    assert shape.attention_layers() == 12 and 3 not in shape.delta_layers


@pytest.mark.parametrize("interval", [2, 4])
def test_a_config_of_transformers_5_is_read_as_the_published_one(interval: int, tmp_path: Path) -> None:
    kinds = ["full_attention" if layer % interval == 0 else "linear_attention" for layer in range(1, 49)]
    rope = {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25}
    missing = {"full_attention_interval": ..., "rope_theta": ..., "rope_scaling": ...}
    saved = read_next(tmp_path, **missing, layer_types=kinds, rope_parameters=rope)
    assert saved == read_next(tmp_path, full_attention_interval=interval)


def test_only_layers_with_attention_have_keys_and_values(tmp_path: Path) -> None:
    shape, recipe = read_next(tmp_path), make_recipe(tmp_path, serving={"max_total_tokens": 1000})
    memory = server_memory(shape, recipe)
    assert memory["kv_cache"] == 1000 * 12 * 2 * 2 * 256 * 4
    state = 32 * 128 * 128 + 3 * (2 * 2048 + 4096)
    assert memory["states"] == 4 * recipe.serving.max_running_requests * 36 * state * 4
    assert server_memory(shape, recipe, on_gpu=True)["states"] == 0


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"layer_types": ["linear_attention"] * 47 + ["full_attention"]}, "full_attention_interval 4"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, "set rope_theta"),
        ({"mlp_only_layers": [0]}, "mlp_only_layers"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings"),
        ({"linear_num_key_heads": 0}, "linear_num_key_heads is 0"),
    ],
)
def test_what_servers_would_compute_otherwise_is_refused(
    tmp_path: Path, settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        read_next(tmp_path, **settings)


@pytest.mark.parametrize(
    ("parallel", "sentence"),
    [
        ({"context": 2}, "trainer.parallel.context is 2, but Qwen3NextForCausalLM has layers of linear"),
        ({"tensor": 4, "sequence_parallel": True}, "2 key-value heads"),
    ],
)
def test_layouts_that_cannot_be_are_refused_by_their_key(
    tmp_path: Path, parallel: dict[str, Any], sentence: str
) -> None:
    shape = read_next(tmp_path)
    recipe = make_recipe(tmp_path, trainer={"num_processes": 4, "parallel": parallel})
    with pytest.raises(InputError, match=sentence):
        check_layout(recipe, shape)


def test_value_heads_that_key_heads_do_not_divide_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="linear_num_value_heads is 24"):
        read_next(tmp_path, linear_num_value_heads=24)
