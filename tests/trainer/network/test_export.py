"""Names and layouts of Hugging Face and Megatron, stacked experts, and the folder of an export."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers
from fakes.models import random_batch, reference_logprobs, reference_model, write_model
from fakes.policies import build_model, load_policy

from asyncrl.model.folder import check_model_folder
from asyncrl.model.weights import num_parameters
from asyncrl.trainer.network import export
from asyncrl.trainer.network.convert import export_stages, exported_tensors, huggingface_names, load_weights
from asyncrl.trainer.network.experts import fetch_part, stack_parts
from asyncrl.trainer.network.export import export_model, open_weights


@pytest.mark.parametrize("is_tied", [False, True])
def test_transformers_loads_an_export_and_computes_the_same(tmp_path: Path, is_tied: bool):
    base = write_model(tmp_path / "base", tie_word_embeddings=is_tied)
    (base / "tokenizer.json").write_text('{"version": "1.0"}')
    trained = write_model(tmp_path / "trained", tie_word_embeddings=is_tied, seed=1)
    model = build_model(check_model_folder(base), torch.float32)
    load_weights(model, open_weights(trained))
    target = tmp_path / "out" / "hf"
    export_model(model, base=base, target=target)
    assert sorted(file.name for file in target.iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    config, wanted_config = (json.loads((folder / "config.json").read_text()) for folder in (target, base))
    assert config == wanted_config | {"dtype": "float32", "torch_dtype": "float32"}
    sequence = random_batch(0).sequences[0]
    got, wanted = (reference_logprobs(reference_model(folder), sequence, 1.0) for folder in (target, trained))
    assert torch.equal(got, wanted)
    assert check_model_folder(target) == check_model_folder(base)


@pytest.mark.parametrize(("dtype", "name"), [(torch.bfloat16, "bfloat16"), (torch.float32, "float32")])
def test_the_configuration_says_what_the_weights_are_and_when_to_stop(
    tmp_path: Path, dtype: torch.dtype, name: str
):
    base = write_model(tmp_path / "base", eos_token_id=7)
    # As of models that were saved without one, in another type, by transformers 4.
    (base / "generation_config.json").unlink()
    config = json.loads((base / "config.json").read_text())
    del config["dtype"]
    (base / "config.json").write_text(json.dumps(config | {"torch_dtype": "float16"}))
    (base / "additional_chat_templates").mkdir()
    (base / "additional_chat_templates" / "tool_use.jinja").write_text("t")
    model = build_model(check_model_folder(base), dtype)
    load_weights(model, open_weights(base))
    export_model(model, base=base, target=tmp_path / "hf")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype="auto")
    assert loaded.dtype is dtype and {p.dtype for p in loaded.parameters()} == {dtype}
    assert loaded.generation_config.eos_token_id == 7
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["torch_dtype"] == name
    assert (tmp_path / "hf" / "additional_chat_templates" / "tool_use.jinja").read_text() == "t"


def test_a_large_model_becomes_several_files_that_transformers_and_the_trainer_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(export, "SHARD_BYTES", 20_000)
    base = write_model(tmp_path / "base")
    shape = check_model_folder(base)
    model = build_model(shape, torch.float32)
    load_weights(model, open_weights(base))
    export_model(model, base=base, target=tmp_path / "hf")
    files = sorted(tmp_path.glob("hf/*.safetensors"))
    assert len(files) > 3 and files[0].name == f"model-00001-of-{len(files):05d}.safetensors"
    assert all(file.stat().st_size < 25_000 for file in files)
    index = json.loads((tmp_path / "hf" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 4 * num_parameters(shape)
    assert check_model_folder(tmp_path / "hf") == shape
    sequence = random_batch(0).sequences[0]
    got, wanted = (
        reference_logprobs(reference_model(folder), sequence, 1.0) for folder in (tmp_path / "hf", base)
    )
    assert torch.equal(got, wanted)


def test_an_export_replaces_the_one_before_it(tmp_path: Path):
    base = write_model(tmp_path / "base")
    model = build_model(check_model_folder(base), torch.float32)
    for _ in range(2):
        export_model(model, base=base, target=tmp_path / "hf")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "hf"]


def test_weights_are_cut_in_their_order_and_a_large_tensor_is_alone():
    weights = [(name, torch.zeros(size)) for name, size in zip("abcde", (10, 10, 10, 100, 1), strict=True)]
    assert [list(part) for part in export.cut(weights, max_bytes=80)] == [["a", "b"], ["c"], ["d"], ["e"]]


CHUNK = SimpleNamespace(
    # A chunk of a later stage: its first layer is the fifth of the model.
    decoder=SimpleNamespace(layers=[SimpleNamespace(layer_number=5), SimpleNamespace(layer_number=6)]),
    config=SimpleNamespace(num_moe_experts=8),
    shape=SimpleNamespace(architecture="Qwen3MoeForCausalLM"),
)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("embedding.word_embeddings.weight", ["model.embed_tokens.weight"]),
        ("decoder.layers.1.self_attention.linear_proj.weight", ["model.layers.5.self_attn.o_proj.weight"]),
        # Transformer Engine's names: norms inside of the next layer, experts as numbered weights.
        (
            "decoder.layers.0.self_attention.linear_qkv.layer_norm_weight",
            ["model.layers.4.input_layernorm.weight"],
        ),
        (
            "decoder.layers.0.mlp.linear_fc1.layer_norm_weight",
            ["model.layers.4.post_attention_layernorm.weight"],
        ),
        (
            "decoder.layers.0.mlp.experts.linear_fc1.weight7",
            ["model.layers.4.mlp.experts.7.gate_proj.weight", "model.layers.4.mlp.experts.7.up_proj.weight"],
        ),
        (
            "decoder.layers.0.mlp.experts.local_experts.7.linear_fc2.weight",
            ["model.layers.4.mlp.experts.7.down_proj.weight"],
        ),
    ],
)
def test_names_are_those_of_the_whole_model(name: str, wanted: list[str]):
    assert list(huggingface_names(CHUNK, name)) == wanted


def test_a_parameter_without_a_name_there_is_an_error():
    with pytest.raises(AssertionError, match=r"no Hugging Face name for mtp\.layer"):
        huggingface_names(CHUNK, "mtp.layer")


GPT_OSS = {"num_local_experts": 3, "num_experts_per_tok": 2, "head_dim": 16, "eos_token_id": 1}
GPT_OSS |= {"rope_parameters": {"rope_type": "default", "rope_theta": 300.0}}


def test_gate_and_up_by_turns_become_gate_over_up_and_return() -> None:
    # Two experts, one input, gates 0 and 2, ups 1 and 3.
    whole = {
        "experts.gate_up_proj": torch.arange(8.0).view(2, 1, 4),
        "experts.down_proj": torch.arange(12.0).view(2, 2, 3),
        "experts.gate_up_proj_bias": torch.arange(8.0).view(2, 4),
    }
    names = [f"{name}.{expert}" for name in whole for expert in range(2)]
    parts = {name: fetch_part(whole.__getitem__, name) for name in names}
    assert parts["experts.gate_up_proj.1"].tolist() == [[4.0], [6.0], [5.0], [7.0]]
    assert parts["experts.gate_up_proj_bias.0"].tolist() == [0.0, 2.0, 1.0, 3.0]
    assert parts["experts.down_proj.0"].tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
    found = dict(stack_parts(parts.items(), 2))
    assert found.keys() == whole.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in whole.items())


def test_tensors_are_listed_as_they_are_sent(tmp_path: Path) -> None:
    model = load_policy(write_model(tmp_path, "GptOss", **GPT_OSS))
    listed = [(each.name, each.shape, each.dtype) for each in exported_tensors(model)]
    sent = [(name, tuple(tensor.shape), tensor.dtype) for name, tensor in export_stages(model)]
    assert listed == sent
    assert ("model.layers.1.mlp.experts.gate_up_proj", (3, 32, 96), torch.float32) in sent


@pytest.mark.parametrize("kind", ["weight", "bias"])
def test_experts_that_transformer_engine_numbers_are_slices_too(kind: str, tmp_path: Path) -> None:
    model = load_policy(write_model(tmp_path, "GptOss", **GPT_OSS))
    suffix = "" if kind == "weight" else "_bias"
    for name in (f"mlp.experts.local_experts.2.linear_fc1.{kind}", f"mlp.experts.linear_fc1.{kind}2"):
        wanted = (f"model.layers.1.mlp.experts.gate_up_proj{suffix}.2",)
        assert huggingface_names(model, f"decoder.layers.1.{name}") == wanted
