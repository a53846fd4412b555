"""Names alone; weights and layouts are compared in test_families.py and test_family_layouts.py."""

from types import SimpleNamespace

import pytest

from asyncrl.trainer.network.convert import huggingface_names

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
