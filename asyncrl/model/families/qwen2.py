"""Qwen2 and 2.5: biases of queries, keys and values."""

from typing import Any

from asyncrl.model.families.family import Config, Family

WINDOWS = frozenset(("sliding_window", "max_window_layers"))
"""Without effect, because use_sliding_window must be false."""


def _read(config: Config) -> dict[str, Any]:
    return {"has_qkv_bias": True}


QWEN2 = Family(
    architecture="Qwen2ForCausalLM",
    model_type="qwen2",
    models="Qwen2, Qwen2.5 (Coder, Math, R1-Distill-Qwen)",
    read=_read,
    ignored=WINDOWS,
)
