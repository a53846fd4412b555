"""The shapes of the tiny Qwen3 model of `models.py`, without writing it to disk, and of Qwen2.5-7B."""

import dataclasses

from asyncrl.model.shape import ModelShape


def tiny_shape() -> ModelShape:
    return ModelShape(
        architecture="Qwen3ForCausalLM",
        num_layers=2,
        hidden_size=32,
        num_heads=4,
        num_kv_heads=2,
        head_size=8,
        ffn_size=48,
        vocab_size=40,
        max_positions=128,
        rope_theta=10000.0,
        rope_scaling_factor=None,
        norm_epsilon=1e-6,
        is_tied=False,
        has_qkv_bias=False,
        has_qk_norm=True,
    )


def seven_b_shape() -> ModelShape:
    """The 7.6 billion parameters of Qwen2.5-7B."""
    return dataclasses.replace(
        tiny_shape(),
        architecture="Qwen2ForCausalLM",
        num_layers=28,
        hidden_size=3584,
        num_heads=28,
        num_kv_heads=4,
        head_size=128,
        ffn_size=18944,
        vocab_size=152064,
        has_qkv_bias=True,
        has_qk_norm=False,
    )
