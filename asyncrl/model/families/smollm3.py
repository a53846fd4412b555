"""SmolLM3: a Llama of which some layers have no rotary positions."""

from typing import Any

from asyncrl.model.families.family import Config, Family


def _read(config: Config) -> dict[str, Any]:
    num_layers = config["num_hidden_layers"]
    # What transformers takes where config.json has neither.
    interval = config.get("no_rope_layer_interval", 4)
    rotated = config.get("no_rope_layers") or [(layer + 1) % interval != 0 for layer in range(num_layers)]
    return {
        "unrotated_layers": tuple(layer for layer in range(num_layers) if not rotated[layer]),
        "is_tied": bool(config.get("tie_word_embeddings", True)),
    }


SMOLLM3 = Family(
    architecture="SmolLM3ForCausalLM",
    model_type="smollm3",
    models="SmolLM3",
    read=_read,
    settings=frozenset(("no_rope_layers", "no_rope_layer_interval")),
    # Without effect, because use_sliding_window must be false.
    ignored=frozenset(("sliding_window", "max_window_layers")),
    rope_theta=2000000.0,
)
