"""Granite 3: a Llama with four multipliers."""

from typing import Any

from asyncrl.model.families.family import Config, Family


def _read(config: Config) -> dict[str, Any]:
    return {
        "embedding_multiplier": float(config["embedding_multiplier"]),
        "residual_multiplier": float(config["residual_multiplier"]),
        "attention_scale": float(config["attention_multiplier"]),
        "logits_divisor": float(config["logits_scaling"]),
    }


GRANITE = Family(
    architecture="GraniteForCausalLM",
    model_type="granite",
    models="Granite 3 (dense)",
    read=_read,
    settings=frozenset(
        ("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling")
    ),
)
