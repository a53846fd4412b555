"""Published configurations of dense families, as their config.json says them, without weights."""

import json
from pathlib import Path
from typing import Any

import pytest

from asyncrl.errors import InputError
from asyncrl.model.folder import read_shape
from asyncrl.model.rotary import Rotation
from asyncrl.model.shape import ModelShape
from asyncrl.model.tensors import num_parameters


def config(architecture: str, kind: str, sizes: tuple[int, ...], **settings: Any) -> dict[str, Any]:
    """`sizes`: layers, hidden, heads, key-value heads, feed-forward, vocabulary, positions."""
    names = (
        *("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads"),
        *("intermediate_size", "vocab_size", "max_position_embeddings"),
    )
    known = {"architectures": [architecture], "model_type": kind, "rms_norm_eps": 1e-6}
    return known | dict(zip(names, sizes, strict=True)) | settings


GELU = {"hidden_activation": "gelu_pytorch_tanh", "cache_implementation": "hybrid"}
GEMMA2 = config(
    "Gemma2ForCausalLM",
    "gemma2",
    (42, 3584, 16, 8, 14336, 256000, 8192),
    **GELU,
    hidden_act="gelu_pytorch_tanh",
    head_dim=256,
    query_pre_attn_scalar=256,
    sliding_window=4096,
    sliding_window_size=4096,
    attn_logit_softcapping=50.0,
    final_logit_softcapping=30.0,
    rope_theta=10000.0,
)
GEMMA3 = config(
    "Gemma3ForCausalLM",
    "gemma3_text",
    (26, 1152, 4, 1, 6912, 262144, 32768),
    **GELU,
    head_dim=256,
    query_pre_attn_scalar=256,
    sliding_window=512,
    sliding_window_pattern=6,
    rope_theta=1000000,
    rope_local_base_freq=10000,
    rope_scaling=None,
    attn_logit_softcapping=None,
    final_logit_softcapping=None,
)
SMOLLM3 = config(
    "SmolLM3ForCausalLM",
    "smollm3",
    (36, 2048, 16, 4, 11008, 128256, 65536),
    no_rope_layers=[1, 1, 1, 0] * 9,
    no_rope_layer_interval=4,
    layer_types=["full_attention"] * 36,
    max_window_layers=28,
    sliding_window=None,
    use_sliding_window=False,
    rope_theta=5000000.0,
    rope_scaling=None,
    tie_word_embeddings=True,
)
OLMO2 = config(
    "Olmo2ForCausalLM",
    "olmo2",
    (32, 4096, 32, 32, 11008, 100352, 4096),
    rope_theta=500000,
    rope_scaling=None,
    attention_bias=False,
    tie_word_embeddings=False,
)
OLMO3_KINDS = (["sliding_attention"] * 3 + ["full_attention"]) * 8
OLMO3 = config(
    "Olmo3ForCausalLM",
    "olmo3",
    (32, 4096, 32, 32, 11008, 100278, 65536),
    layer_types=OLMO3_KINDS,
    sliding_window=4096,
    rope_theta=500000,
    rope_scaling={
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 8192,
        "attention_factor": 1.2079441541679836,
        "beta_fast": 32,
        "beta_slow": 1,
    },
    attention_bias=False,
)
GLM4 = config(
    "Glm4ForCausalLM",
    "glm4",
    (40, 4096, 32, 2, 13696, 151552, 32768),
    head_dim=128,
    partial_rotary_factor=0.5,
    attention_bias=True,
    rope_theta=10000.0,
)

PHI4_MINI = config(
    "Phi3ForCausalLM",
    "phi3",
    (32, 3072, 24, 8, 8192, 200064, 131072),
    partial_rotary_factor=0.75,
    original_max_position_embeddings=4096,
    rope_scaling={"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [1.5] * 48},
    rope_theta=10000.0,
    sliding_window=262144,
    tie_word_embeddings=True,
    embd_pdrop=0.0,
    resid_pdrop=0.0,
    full_attn_mod=1,
    interpolate_factor=1,
    lm_head_bias=False,
)

GPT_OSS = config(
    "GptOssForCausalLM",
    "gpt_oss",
    (24, 2880, 64, 8, 2880, 201088, 131072),
    attention_bias=True,
    experts_per_token=4,
    head_dim=64,
    initial_context_length=4096,
    layer_types=["sliding_attention", "full_attention"] * 12,
    num_experts_per_tok=4,
    num_local_experts=32,
    rope_scaling={
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "rope_type": "yarn",
        "truncate": False,
    },
    rope_theta=150000,
    router_aux_loss_coef=0.9,
    sliding_window=128,
    swiglu_limit=7.0,
    tie_word_embeddings=False,
)


def read(folder: Path, settings: dict[str, Any]) -> ModelShape:
    (folder / "config.json").write_text(json.dumps(settings))
    return read_shape(folder)


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        (GEMMA2, 9_241_705_984),
        (GEMMA3, 999_885_952),
        (SMOLLM3, 3_075_098_624),
        # By hand: 2 x 100352 x 4096, 32 x (4 x 4096^2 + 3 x 4096 x 11008 + 4 x 4096), 4096.
        (OLMO2, 7_298_617_344),
        (OLMO3, 7_298_617_344 - 2 * (100352 - 100278) * 4096),
        (PHI4_MINI, 3_836_021_760),
        (GPT_OSS, 20_914_757_184),
        (GPT_OSS | {"num_hidden_layers": 36, "num_local_experts": 128, "layer_types": None}, 116_829_156_672),
    ],
    ids=("gemma2", "gemma3", "smollm3", "olmo2", "olmo3", "phi4-mini", "gpt-oss-20b", "gpt-oss-120b"),
)
def test_a_published_model_has_as_many_parameters_as_its_card_says(
    settings: dict[str, Any], count: int, tmp_path: Path
) -> None:
    assert num_parameters(read(tmp_path, settings)) == count


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


def test_olmo_3_as_transformers_5_writes_it_needs_the_keys_that_servers_read(tmp_path: Path) -> None:
    bare = {key: value for key, value in OLMO3.items() if not key.startswith("rope")}
    both = OLMO3 | {"rope_parameters": NESTED}
    assert read(tmp_path, both) == read(tmp_path, OLMO3)
    message = (
        r"servers would take default \(base 10000\): .* set rope_theta to 500000.0 and rope_scaling to .*yarn"
    )
    with pytest.raises(InputError, match=message):
        read(tmp_path, bare | {"rope_parameters": NESTED})
    with pytest.raises(InputError, match=r"servers would take default \(base 500000\)"):
        read(tmp_path, bare | {"rope_parameters": NESTED, "rope_theta": 500000})
    # transformers takes 500000 where none is written.
    with pytest.raises(
        InputError, match=r"default \(base 500000\), but servers would take default \(base 10000"
    ):
        read(tmp_path, bare)
    plain = dict.fromkeys(NESTED, {"rope_type": "default", "rope_theta": 777.0})
    assert read(tmp_path, bare | {"rope_parameters": plain, "rope_theta": 777.0}).rope_theta == 777.0


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
        (OLMO3 | {"layer_types": OLMO3_KINDS[:-1]}, "layer_types has 31 entries"),
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
