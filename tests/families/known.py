"""The one list of tiny families: tests that each family must pass are given from here.

A family joins by an entry: a `Tiny` in models.py, listed here by its architecture, and published.yaml.
Without it the tests of the family fail. torch is imported where a model is written.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from families import models
from families.tiny import Config, Tiny

from asyncrl.model.families import FAMILIES
from asyncrl.recipe.yaml_text import read_yaml

SIZES = (
    *("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads"),
    *("intermediate_size", "vocab_size", "max_position_embeddings"),
)
"""Of a published model."""
_TINY: Mapping[str, Tiny] = {
    "LlamaForCausalLM": models.LLAMA,
    "MistralForCausalLM": models.MISTRAL,
    "Qwen2ForCausalLM": models.QWEN2,
    "Qwen3ForCausalLM": models.QWEN3,
    "Qwen3MoeForCausalLM": models.QWEN3_MOE,
    "Qwen2MoeForCausalLM": models.QWEN2_MOE,
    "Qwen3NextForCausalLM": models.QWEN3_NEXT,
    "MixtralForCausalLM": models.MIXTRAL,
    "Glm4MoeForCausalLM": models.GLM4_MOE,
    "GptOssForCausalLM": models.GPT_OSS,
    "DeepseekV3ForCausalLM": models.DEEPSEEK_V3,
    "DeepseekV2ForCausalLM": models.DEEPSEEK_V2,
    "Phi3ForCausalLM": models.PHI3,
    "GraniteForCausalLM": models.GRANITE,
    "Olmo2ForCausalLM": models.OLMO2,
    "Olmo3ForCausalLM": models.OLMO3,
    "SmolLM3ForCausalLM": models.SMOLLM3,
    "Glm4ForCausalLM": models.GLM4,
    "Gemma2ForCausalLM": models.GEMMA2,
    "Gemma3ForCausalLM": models.GEMMA3,
}


def _published() -> Iterator[tuple[str, dict[str, tuple[Config, int]]]]:
    read = read_yaml((Path(__file__).with_name("published.yaml")).read_text(encoding="utf-8"))
    for architecture, models_of_it in read.items():
        named = {"architectures": [architecture], "model_type": FAMILIES[architecture].model_type}
        yield (
            architecture,
            {
                hub_id: (
                    named
                    | {"rms_norm_eps": 1e-6}
                    | dict(zip(SIZES, said["sizes"], strict=True))
                    | said["config"],
                    said["parameters"],
                )
                for hub_id, said in models_of_it.items()
            },
        )


TINY = {name: replace(_TINY[name], published=found) for name, found in _published()}
END = 1
"""Id of the end token; padding, whose row would have no gradient in transformers, there is none."""


def tiny(architecture: str) -> Tiny:
    assert architecture in TINY, f"{architecture} has no entry in tests/families/known.py"
    return TINY[architecture]


def write_tiny(
    folder: Path, architecture: str, *, variant: str | None = None, seed: int = 0, **more: object
) -> Path:
    """`fakes.models.write_model` of a family; `more` are settings on top."""
    from fakes import models

    entry = tiny(architecture)
    settings = {"num_hidden_layers": models.SIZES["num_hidden_layers"], "eos_token_id": END}
    settings |= _settings(entry, variant) | more
    _repeat_layer_types(settings)
    return models.write_model(folder, entry.config, seed=seed, **settings)


def write_served(
    folder: Path, architecture: str, *, variant: str | None = None, seed: int = 0, **more: object
) -> Path:
    """`serving.engine.servers.write_model` of a family: of a size that SGLang computes on a CPU."""
    from serving.engine.servers import NUM_LAYERS, write_model

    entry = tiny(architecture)
    own = _settings(entry, variant)
    own.pop("head_dim", None)
    settings = {"num_hidden_layers": NUM_LAYERS, **own, **entry.served, **more}
    _repeat_layer_types(settings)
    return write_model(folder, seed=seed, family=FAMILIES[architecture].model_type, **settings)


def _settings(entry: Tiny, variant: str | None) -> dict[str, Any]:
    further = {} if variant is None else entry.variants[variant]
    return {"pad_token_id": None, **entry.settings, **further}


def _repeat_layer_types(settings: dict[str, Any]) -> None:
    if settings.get("layer_types"):
        kinds, count = settings["layer_types"], settings["num_hidden_layers"]
        settings["layer_types"] = (list(kinds) * count)[:count]
