"""Qwen3: norms of queries and keys, each head by itself."""

from typing import Any

from asyncrl.model.families.family import Config, Family
from asyncrl.model.families.qwen2 import WINDOWS


def read_norms(config: Config) -> dict[str, Any]:
    return {"has_qk_norm": True}


QWEN3 = Family(
    architecture="Qwen3ForCausalLM",
    model_type="qwen3",
    models="Qwen3",
    read=read_norms,
    ignored=WINDOWS,
)
