import dataclasses
import importlib
import importlib.util
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers
from fakes.models import SIZES, write_model
from families.known import TINY, write_tiny

from asyncrl.errors import InputError
from asyncrl.model.families import FAMILIES
from asyncrl.model.families.family import Family
from asyncrl.model.flops import score_flops, token_flops
from asyncrl.model.folder import (
    ONLY,
    SHAPING,
    WITHOUT_EFFECT,
    check_model_folder,
    other_files,
    refuse_unknown_settings,
    unread_notes,
)
from asyncrl.model.weights import expected_tensors, num_parameters


def edit_config(folder: Path, **changes: object) -> None:
    file = folder / "config.json"
    config = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def test_the_shape_is_read_from_the_config(folder: Path):
    shape = check_model_folder(folder)
    assert (shape.architecture, shape.num_layers, shape.head_size) == ("Qwen3ForCausalLM", 2, 16)
    assert (shape.rope_theta, shape.rope_scaling_factor, shape.is_tied) == (10000.0, None, False)
    # embeddings 2 x 40 x 32; per layer q 64 x 32, k and v 32 x 32, o 32 x 64, mlp 3 x 48 x 32,
    # norms 2 x 32 + 2 x 16; last norm 32
    layer = 64 * 32 + 2 * 32 * 32 + 32 * 64 + 3 * 48 * 32 + 2 * 32 + 2 * 16
    assert num_parameters(shape) == 2 * 40 * 32 + 2 * layer + 32


def test_positions_are_read_as_transformers_4_wrote_them(folder: Path):
    edit_config(folder, rope_parameters=None, rope_theta=777.0)
    assert check_model_folder(folder).rope_theta == 777.0


@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Qwen3"])
@pytest.mark.parametrize("is_tied", [False, True])
def test_every_tensor_that_transformers_saves_is_expected(family: str, is_tied: bool, tmp_path: Path):
    shape = check_model_folder(write_model(tmp_path, family, tie_word_embeddings=is_tied))
    assert len(list(expected_tensors(shape))) == len(set(expected_tensors(shape)))


@pytest.mark.parametrize("architecture", TINY)
def test_a_model_of_each_family_passes_as_transformers_saves_it(architecture: str, tmp_path: Path):
    assert check_model_folder(write_tiny(tmp_path, architecture)).architecture == architecture


def test_experts_are_read_under_the_names_of_transformers_4_and_5(tmp_path: Path):
    folder = write_model(
        tmp_path, "Qwen3Moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, head_dim=16
    )
    shape = check_model_folder(folder)
    assert (shape.num_experts, shape.experts_per_token, shape.expert_ffn_size) == (4, 2, 24)
    # router 4 x 32 and four networks of 3 x 24 x 32 instead of one of 3 x 48 x 32
    dense = dataclasses.replace(shape, num_experts=None)
    difference = 4 * 32 + 4 * 3 * 24 * 32 - 3 * 48 * 32
    assert num_parameters(shape) == num_parameters(dense) + 2 * difference
    edit_config(folder, num_local_experts=None, num_experts=4)
    assert check_model_folder(folder) == shape


def test_layers_without_experts_between_those_with_them_are_refused(tmp_path: Path):
    folder = write_model(tmp_path, "Qwen3Moe", num_experts=4, moe_intermediate_size=24, head_dim=16)
    edit_config(folder, mlp_only_layers=[0])
    with pytest.raises(InputError, match="mlp_only_layers"):
        check_model_folder(folder)


def test_the_first_layers_of_glm4_moe_have_no_experts_and_the_layer_behind_the_last_is_not_read(
    tmp_path: Path,
):
    sizes = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "head_dim": 16}
    folder = write_model(
        tmp_path, "Glm4Moe", num_hidden_layers=4, first_k_dense_replace=3, n_shared_experts=2, **sizes
    )
    shape = check_model_folder(folder)
    assert (shape.dense_layers, shape.expert_layers()) == ((0, 1, 2), 1)
    # q and o 64 x 32 each, k and v 32 x 32 each; the layer with experts has a router of 4 rows, 2 experts a
    # token and two shared ones, the others one network.
    attention, dense = 2 * 64 * 32 + 2 * 32 * 32, 3 * 32 * 48
    assert token_flops(shape) == 6 * (4 * attention + 3 * dense + 32 * (4 + 3 * (2 * 24 + 2 * 24)))
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    weights["model.layers.4.eh_proj.weight"] = torch.ones(32, 64)
    safetensors.torch.save_file(weights, folder / "model.safetensors")
    assert check_model_folder(folder) == shape
    weights["model.layers.5.eh_proj.weight"] = torch.ones(32, 64)
    safetensors.torch.save_file(weights, folder / "model.safetensors")
    with pytest.raises(InputError, match=r"model\.layers\.5\.eh_proj"):
        check_model_folder(folder)


def write_latent(folder: Path, family: str = "DeepseekV3", **overrides: object) -> Path:
    sizes = {"num_key_value_heads": 4, "q_lora_rank": 12, "kv_lora_rank": 10, "qk_nope_head_dim": 6}
    sizes |= {"qk_rope_head_dim": 4, "v_head_dim": 8, "first_k_dense_replace": 1, "n_routed_experts": 8}
    sizes |= {"num_experts_per_tok": 4, "moe_intermediate_size": 24, "n_group": 4, "topk_group": 2}
    return write_model(folder, family, **sizes | overrides)


def test_the_matrices_of_latent_attention_cost_what_they_have_and_a_cache_holds_one_vector(tmp_path: Path):
    folder = write_latent(tmp_path)
    shape = check_model_folder(folder)
    # Of queries 32 x 12 and 12 x 40, of keys and values 32 x 14 and 10 x 4 x (6 + 8), behind these 32 x 32.
    attention = 32 * 12 + 12 * 40 + 32 * 14 + 10 * 56 + 32 * 32
    # A layer with one network of 48; one with a router of 8, four experts of 24 a token and one for all.
    assert token_flops(shape) == 6 * (2 * attention + 3 * 32 * 48 + 32 * (8 + 3 * 5 * 24))
    assert shape.cached_numbers() == 10 + 4
    # Two products of 10 and 8 numbers per look and head.
    assert score_flops(shape, 7) == 2 * 2 * 7 * 4 * (10 + 8)
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    assert unread_notes(folder, shape) == []
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(2)
    weights["model.layers.2.eh_proj.weight"] = torch.ones(32, 64)
    safetensors.torch.save_file(weights, folder / "model.safetensors")
    assert check_model_folder(folder) == shape
    (note,) = unread_notes(folder, shape)
    assert "has 2 tensors that transformers does not read for DeepseekV3" in note


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"topk_method": "greedy"}, "topk_method is 'greedy'; only 'noaux_tc'"),
        ({"scoring_func": "softmax"}, "scoring_func is 'softmax'; only 'sigmoid'"),
        ({"norm_topk_prob": False}, "norm_topk_prob is false; only true"),
        ({"topk_group": 1}, "n_group is 4 and topk_group 1, of 8 experts .* best two"),
        ({"n_group": 3}, "n_group is 3 .* divides the experts"),
        ({"num_key_value_heads": 2}, "num_key_value_heads is 2; latent attention has as many"),
        ({"rope_interleave": False}, "rope_interleave"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, "default or yarn, in servers too"),
        ({"model_type": "kimi_k2"}, "model_type is 'kimi_k2'"),
        ({"quantization_config": {"quant_method": "fp8"}}, r"quantized \(fp8\)"),
        ({"kv_lora_rank": 0}, "kv_lora_rank is 0"),
    ],
)
def test_latent_models_that_would_train_or_serve_otherwise_are_refused(
    changes: dict, message: str, tmp_path: Path
):
    folder = write_latent(tmp_path)
    edit_config(folder, **changes)
    with pytest.raises(InputError, match=message):
        check_model_folder(folder)


def test_as_many_groups_as_a_token_may_take_are_none(tmp_path: Path):
    folder = write_latent(tmp_path, topk_group=4)
    assert check_model_folder(folder).expert_groups == 1


def test_a_sharded_folder_is_read_as_one(tmp_path: Path):
    import transformers

    config = transformers.Qwen3Config(**SIZES, head_dim=16)
    transformers.Qwen3ForCausalLM(config).save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    check_model_folder(tmp_path)


def test_a_missing_folder_is_named(tmp_path: Path):
    with pytest.raises(InputError, match="nowhere, which is not a folder"):
        check_model_folder(tmp_path / "nowhere")


def test_a_folder_without_config_is_not_a_model(tmp_path: Path):
    with pytest.raises(InputError, match=r"holds no config\.json"):
        check_model_folder(tmp_path)


def test_a_broken_config_is_named(folder: Path):
    (folder / "config.json").write_text("{")
    with pytest.raises(InputError, match=r"config\.json is not JSON"):
        check_model_folder(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"architectures": ["GPT2LMHeadModel"]},
            r"GPT2LMHeadModel cannot be .* nearest relative here is LlamaFor.* Known: LlamaFor",
        ),
        ({"intermediate_size": None}, "has no 'intermediate_size'"),
        ({"vocab_size": 64}, r"embed_tokens.weight has shape \(40, 32\).*makes it \(64, 32\)"),
        ({"num_hidden_layers": 3}, r"no tensor model\.layers\.2\."),
        ({"num_hidden_layers": 1}, r"first model\.layers\.1\..*Training would lose them"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"attention_bias": True}, "attention_bias"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        (
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}},
            "cannot be trained",
        ),
    ],
)
def test_a_config_that_asks_for_another_model_is_refused_by_its_setting(
    folder: Path, changes: dict, message: str
):
    edit_config(folder, **changes)
    with pytest.raises(InputError, match=message):
        check_model_folder(folder)


def test_a_folder_without_safetensors_says_what_to_do(folder: Path):
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match="Convert the weights to safetensors"):
        check_model_folder(folder)


@pytest.mark.parametrize(
    "content", [b"", b"not a safetensors file at all", b"\xff" * 64, b"\x02" + b"\0" * 7 + b"[]"]
)
def test_a_file_that_is_no_safetensors_is_named(folder: Path, content: bytes):
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(InputError, match=r"model\.safetensors is not a safetensors file"):
        check_model_folder(folder)


def test_tokenizer_and_configuration_are_the_files_without_weights(folder: Path):
    for name in ("tokenizer.json", "vocab.json", "pytorch_model.bin", "model.safetensors.index.json"):
        (folder / name).write_text("{}")
    names = [file.name for file in other_files(folder)]
    assert names == ["config.json", "generation_config.json", "tokenizer.json", "vocab.json"]


def test_checking_a_folder_does_not_import_torch():
    code = "import sys, asyncrl.model.folder; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize(("window", "longest"), [(None, 128), (48, 48), (4096, 128)])
def test_a_window_limits_the_context(window: int | None, longest: int, tmp_path: Path) -> None:
    assert (
        check_model_folder(write_model(tmp_path, "Mistral", sliding_window=window)).max_positions == longest
    )


FILE = Path("config.json")
OTHER_FAMILIES = (
    *("cohere", "deepseek_v3", "starcoder2", "nemotron", "stablelm", "minicpm3", "gpt_oss", "qwen4_exp"),
)
NOT_OF_THE_FORWARD_PASS = {
    "_attn_implementation": "chooses between kernels of one attention",
    "pad_token_id": "freezes a row of the embedding, which training does not follow; its value counts",
    "initializer_range": "of new weights",
    "router_aux_loss_coef": "of a loss that is ours to choose",
    "output_router_logits": "of that loss",
    "use_cache": "of generation",
    "text_config": "of models that also see pictures",
    "original_max_position_embeddings": "of longrope, which is refused",
}
WINDOWS = {"sliding_window", "layer_types"}
"""Off, because use_sliding_window must be false; layer_types that name others are refused."""


FOLDERS = {"gemma3_text": "gemma3"}
"""model_type -> its folder in transformers, where that has another name."""


def defaults(family: str) -> dict[str, Any]:
    folder = FOLDERS.get(family, family)
    module = importlib.import_module(f"transformers.models.{folder}.configuration_{folder}")
    name = family.replace("_", "") + "config"
    found = next(kind for key, kind in vars(module).items() if key.lower() == name)
    values: dict[str, Any] = found().to_dict()
    return values


def refuse(config: dict[str, Any], architecture: str = "LlamaForCausalLM") -> None:
    refuse_unknown_settings(FILE, config, FAMILIES[architecture])


@pytest.mark.parametrize("architecture", FAMILIES)
def test_a_config_as_transformers_writes_it_passes(architecture: str) -> None:
    refuse(defaults(FAMILIES[architecture].model_type), architecture)


@pytest.mark.parametrize("architecture", FAMILIES)
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("logits_scaling", 8.0),
        ("attention_multiplier", 0.0078125),
        ("partial_rotary_factor", 0.5),
        ("dual_chunk_attention_config", {"chunk_size": 262144}),
        ("rope_parameters", {"rope_theta": 1e4, "rope_type": "default", "mrope_section": [16, 24, 24]}),
        ("rope_parameters", {"rope_theta": 1e4, "partial_rotary_factor": 0.25}),
        ("attention_dropout", 0.1),
        ("model_type", "cohere"),
    ],
)
def test_a_setting_that_changes_the_model_is_refused_by_name(
    architecture: str, key: str, value: object
) -> None:
    read = FAMILIES[architecture].settings
    if key in read or isinstance(value, dict) and read & value.keys():
        pytest.skip("read by this family")
    with pytest.raises(InputError, match=key):
        refuse(defaults(FAMILIES[architecture].model_type) | {key: value}, architecture)


@pytest.mark.parametrize("value", [None, False, 0, 0.0, "", [], {}])
def test_a_setting_that_is_off_passes(value: object) -> None:
    refuse({"final_logit_softcapping": value})


def test_a_window_is_refused_where_nothing_turns_it_off() -> None:
    refuse({"sliding_window": 4096, "use_sliding_window": False}, "Qwen2ForCausalLM")
    with pytest.raises(InputError, match="sliding_window is 4096"):
        refuse({"sliding_window": 4096})


def settings_of_other_families() -> Iterator[tuple[str, str, Any]]:
    for family in OTHER_FAMILIES:
        if importlib.util.find_spec(f"transformers.models.{family}") is None:
            continue
        for key, value in defaults(family).items():
            if key not in SHAPING | WITHOUT_EFFECT | {"model_type"} and value:
                yield family, key, value


def test_what_other_families_set_is_refused_unless_it_is_a_value_that_is_trained() -> None:
    found = list(settings_of_other_families())
    assert len(found) > 50
    for family, key, value in found:
        if value in ONLY.get(key, ()):
            continue
        with pytest.raises(InputError, match=re.escape(key)):
            refuse({key: value})
            pytest.fail(f"{key} of {family} passed")


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.model_type)
def test_nothing_that_transformers_computes_with_counts_as_without_effect(family: Family) -> None:
    kind = family.model_type
    folder = FOLDERS.get(kind, kind)
    module = importlib.import_module(f"transformers.models.{folder}.modeling_{folder}")
    # What a text model does not have comes behind it.
    source, *_ = re.split(r"\nclass \w+MultiModalProjector", inspect.getsource(module))
    read = set(re.findall(r"config\.(\w+)", source))
    read |= set(re.findall(r'getattr\((?:self\.)?config, "(\w+)"', source))
    # Other names that transformers' models know a setting by.
    aliases = transformers.AutoConfig.for_model(kind).attribute_map
    read = {aliases.get(name, name) for name in read}
    known = SHAPING | family.settings | ONLY.keys() | family.only.keys()
    assert read - NOT_OF_THE_FORWARD_PASS.keys() - WINDOWS <= known


@pytest.mark.parametrize(
    "family", ["llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "granite", "olmo2", "glm4"]
)
def test_nothing_that_sglang_computes_with_counts_as_without_effect(family: str) -> None:
    # SGLang's package is found, not imported: that loads its engine.
    found = importlib.util.find_spec("sglang")
    assert found is not None and found.submodule_search_locations is not None
    root = Path(found.submodule_search_locations[0])
    source = (root / "srt" / "models" / f"{family}.py").read_text(encoding="utf-8")
    read = set(re.findall(r"config\.(\w+)", source))
    read |= set(re.findall(r'(?:getattr|hasattr)\(\s*(?:self\.)?config,\s*"(\w+)"', source))
    assert not (read & WITHOUT_EFFECT) - NOT_OF_THE_FORWARD_PASS.keys()
