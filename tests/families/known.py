"""The one list of tiny families: tests that each family must pass are given from here.

A family joins by an entry: a `Tiny` in one of the files beside this one, listed here by its architecture.
Without it the tests of the family fail. torch is imported where a model is written.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from families import experts, other_experts, other_layers, plain
from families.tiny import Tiny

from asyncrl.model.families import FAMILIES

TINY: Mapping[str, Tiny] = {
    "LlamaForCausalLM": plain.LLAMA,
    "MistralForCausalLM": plain.MISTRAL,
    "Qwen2ForCausalLM": plain.QWEN2,
    "Qwen3ForCausalLM": plain.QWEN3,
    "Qwen3MoeForCausalLM": experts.QWEN3_MOE,
    "Qwen2MoeForCausalLM": experts.QWEN2_MOE,
    "Qwen3NextForCausalLM": other_experts.QWEN3_NEXT,
    "MixtralForCausalLM": experts.MIXTRAL,
    "Glm4MoeForCausalLM": experts.GLM4_MOE,
    "GptOssForCausalLM": other_experts.GPT_OSS,
    "DeepseekV3ForCausalLM": other_experts.DEEPSEEK_V3,
    "DeepseekV2ForCausalLM": other_experts.DEEPSEEK_V2,
    "Phi3ForCausalLM": plain.PHI3,
    "GraniteForCausalLM": plain.GRANITE,
    "Olmo2ForCausalLM": other_layers.OLMO2,
    "Olmo3ForCausalLM": other_layers.OLMO3,
    "SmolLM3ForCausalLM": plain.SMOLLM3,
    "Glm4ForCausalLM": other_layers.GLM4,
    "Gemma2ForCausalLM": other_layers.GEMMA2,
    "Gemma3ForCausalLM": other_layers.GEMMA3,
}
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
