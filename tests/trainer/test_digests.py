import hashlib

import pytest
import torch

from asyncrl.trainer import digests
from asyncrl.trainer.digests import EngineDigests, engine_digests, tensor_digest


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
    weights |= {f"{layer}mlp.{part}_proj.weight": torch.randn(32, 32) for part in ("gate", "up", "down")}
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


def test_threads_digest_what_one_thread_does_also_where_they_must_be_waited_for(
    monkeypatch: pytest.MonkeyPatch,
):
    layers = [f"model.layers.{n}." for n in range(6)]
    weights = {
        f"{layer}self_attn.{part}_proj.weight": torch.randn(64, 32) for layer in layers for part in "qkv"
    }
    weights |= {f"{layer}input_layernorm.weight": torch.randn(32) for layer in layers}
    # No tensor of this size gets a thread; then all but the norms do, and two of them fill the waiting room.
    in_line = engine_digests(weights)
    monkeypatch.setattr(digests, "THREADED_BYTES", 1000)
    monkeypatch.setattr(digests, "PENDING_BYTES", 20_000)
    assert engine_digests(weights) == in_line
    assert len(in_line) == 12


def test_the_vocabulary_is_padded_with_rows_of_zeros_to_a_multiple_of_64():
    weights = {name: torch.randn(70, 3) for name in ("model.embed_tokens.weight", "lm_head.weight")}
    wanted = {name: sha(torch.cat([tensor, torch.zeros(58, 3)])) for name, tensor in weights.items()}
    assert engine_digests(weights) == wanted


def test_the_feed_forward_width_is_padded_to_a_multiple_of_32():
    prefix = "model.layers.0.mlp."
    gate, up, down = torch.randn(30, 3), torch.randn(30, 3), torch.randn(3, 30)
    weights = {
        f"{prefix}gate_proj.weight": gate,
        f"{prefix}up_proj.weight": up,
        f"{prefix}down_proj.weight": down,
    }
    two_rows, two_columns = torch.zeros(2, 3), torch.zeros(3, 2)
    assert engine_digests(weights) == {
        f"{prefix}gate_up_proj.weight": sha(torch.cat([gate, two_rows, up, two_rows])),
        f"{prefix}down_proj.weight": sha(torch.cat([down, two_columns], 1)),
    }


def test_experts_are_stacked_in_the_order_of_their_numbers():
    # Eleven experts: by name 10 would come before 2.
    prefix = "model.layers.0.mlp.experts."
    weights = {
        f"{prefix}{expert}.{part}_proj.weight": torch.randn((3, 32) if part == "down" else (32, 3))
        for expert in range(11)
        for part in ("down", "gate", "up")
    }
    gate_up = [weights[f"{prefix}{e}.{part}_proj.weight"] for e in range(11) for part in ("gate", "up")]
    down = [weights[f"{prefix}{e}.down_proj.weight"] for e in range(11)]
    assert engine_digests(weights) == {
        f"{prefix}w13_weight": sha(torch.cat(gate_up)),
        f"{prefix}w2_weight": sha(torch.cat(down)),
    }


def test_parts_of_a_fused_tensor_that_come_in_another_order_are_an_error():
    digests = EngineDigests()
    with pytest.raises(AssertionError, match="part 1 of a fused tensor came where 0 belongs"):
        digests.add("model.layers.0.mlp.up_proj.weight", torch.zeros(32, 3))


def test_weights_pass_through_while_they_are_digested():
    weights = {"model.norm.weight": torch.randn(3)}
    digests = EngineDigests()
    assert dict(digests.watch(weights.items())) == weights
    assert digests.result() == engine_digests(weights)
