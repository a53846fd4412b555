import hashlib

import torch

from asyncrl.trainer.digests import engine_digests, tensor_digest


def sha(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()[:16]


def test_a_digest_is_the_first_eight_bytes_of_the_sha_256_of_the_raw_bytes():
    # echo -n "" with four zero bytes: sha256 df3f619804a92fdb4057192dc43dd748...
    assert tensor_digest([torch.zeros(1)]) == "df3f619804a92fdb"


def test_parts_are_digested_as_if_stacked():
    parts = [torch.randn(2, 3), torch.randn(4, 3)]
    assert tensor_digest(parts) == sha(torch.cat(parts))


def test_bfloat16_is_digested_by_its_bytes():
    tensor = torch.randn(3, 3).bfloat16()
    assert tensor_digest([tensor]) == sha(tensor.view(torch.int16))


def test_q_k_v_and_gate_up_are_fused_under_the_engines_names():
    layer = "model.layers.0."
    weights = {
        f"{layer}self_attn.{part}_proj.{kind}": torch.randn(4, 3) if kind == "weight" else torch.randn(4)
        for part in "qkv"
        for kind in ("weight", "bias")
    }
    weights |= {f"{layer}mlp.{part}_proj.weight": torch.randn(5, 3) for part in ("gate", "up", "down")}
    weights["model.norm.weight"] = torch.randn(3)
    digests = engine_digests(weights)
    assert digests == {
        f"{layer}self_attn.qkv_proj.weight": sha(
            torch.cat([weights[f"{layer}self_attn.{part}_proj.weight"] for part in "qkv"])
        ),
        f"{layer}self_attn.qkv_proj.bias": sha(
            torch.cat([weights[f"{layer}self_attn.{part}_proj.bias"] for part in "qkv"])
        ),
        f"{layer}mlp.gate_up_proj.weight": sha(
            torch.cat([weights[f"{layer}mlp.{part}_proj.weight"] for part in ("gate", "up")])
        ),
        f"{layer}mlp.down_proj.weight": sha(weights[f"{layer}mlp.down_proj.weight"]),
        "model.norm.weight": sha(weights["model.norm.weight"]),
    }
