"""Gemma 3 (text): Gemma 2 without soft caps, with norms of queries and keys and two rotary bases."""

from typing import Any

from asyncrl.model.families.family import Config, Family, sliding_layers
from asyncrl.model.families.gemma2 import NAMES, ONLY, SETTINGS, layer_tensors, read_layers


def _read(config: Config) -> dict[str, Any]:
    pattern = config.get("sliding_window_pattern", config.get("_sliding_window_pattern", 6))
    return read_layers(config) | {
        "has_qk_norm": True,
        "sliding_layers": sliding_layers(config, default=lambda layer: (layer + 1) % pattern != 0),
    }


GEMMA3 = Family(
    architecture="Gemma3ForCausalLM",
    model_type="gemma3_text",
    models="Gemma 3 (text: 270M, 1B)",
    read=_read,
    settings=(SETTINGS - {"attn_logit_softcapping"})
    | {"sliding_window_pattern", "_sliding_window_pattern", "rope_local_base_freq"},
    ignored=frozenset(("cache_implementation",)),
    only=ONLY | {"attn_logit_softcapping": (None,)},
    layer_types=frozenset(("full_attention", "sliding_attention")),
    rope_theta=1000000.0,
    sliding_rope_theta=10000.0,
    layer_tensors=layer_tensors,
    layer_names=NAMES,
)
