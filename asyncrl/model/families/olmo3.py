"""OLMo 3: OLMo 2 with sliding layers, whose rotary positions are not scaled.

SGLang 0.5.23 has a configuration of its own for it, with the rotary keys of transformers 4.
"""

from typing import Any

from asyncrl.model.families.family import LAYER_NAMES, Config, Family, sliding_layers
from asyncrl.model.families.olmo2 import NAMES_BEHIND, layer_tensors, read_norms


def _read(config: Config) -> dict[str, Any]:
    return read_norms(config) | {
        "window": config["sliding_window"],
        "sliding_layers": sliding_layers(config, default=lambda layer: (layer + 1) % 4 != 0),
    }


OLMO3 = Family(
    architecture="Olmo3ForCausalLM",
    model_type="olmo3",
    models="OLMo 3",
    read=_read,
    settings=frozenset(("sliding_window",)),
    layer_types=frozenset(("full_attention", "sliding_attention")),
    rope_theta=500000.0,
    sliding_rope_theta=500000.0,
    serves_old_rotary_keys=True,
    layer_tensors=layer_tensors,
    layer_names=LAYER_NAMES | NAMES_BEHIND,
)
