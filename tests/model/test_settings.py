"""Every setting of a config.json is read, fixed, without effect, or refused by its name."""

import importlib
import importlib.util
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import transformers

from asyncrl.errors import InputError
from asyncrl.model.families.family import Family
from asyncrl.model.families import FAMILIES
from asyncrl.model.settings import ONLY, SHAPING, WITHOUT_EFFECT, refuse_unknown_settings

FILE = Path("config.json")
OTHER_FAMILIES = (
    *("cohere", "deepseek_v3", "starcoder2", "nemotron", "stablelm", "minicpm3", "gpt_oss", "qwen4_exp"),
)
NOT_OF_THE_FORWARD_PASS = {
    "_attn_implementation": "chooses between kernels of one attention",
    "pad_token_id": "freezes a row of the embedding, which training does not follow; its value counts",
    "initializer_range": "of new weights",
    "router_aux_loss_coef": "of a loss that is ours to choose",
    "output_router_logits": "of that loss",
    "use_cache": "of generation",
    "text_config": "of models that also see pictures",
    "original_max_position_embeddings": "of longrope, which is refused",
}
WINDOWS = {"sliding_window", "layer_types"}
"""Off, because use_sliding_window must be false; layer_types that name others are refused."""


FOLDERS = {"gemma3_text": "gemma3"}
"""model_type -> its folder in transformers, where that has another name."""


def defaults(family: str) -> dict[str, Any]:
    folder = FOLDERS.get(family, family)
    module = importlib.import_module(f"transformers.models.{folder}.configuration_{folder}")
    name = family.replace("_", "") + "config"
    found = next(kind for key, kind in vars(module).items() if key.lower() == name)
    values: dict[str, Any] = found().to_dict()
    return values


def refuse(config: dict[str, Any], architecture: str = "LlamaForCausalLM") -> None:
    refuse_unknown_settings(FILE, config, FAMILIES[architecture])


@pytest.mark.parametrize("architecture", FAMILIES)
def test_a_config_as_transformers_writes_it_passes(architecture: str) -> None:
    refuse(defaults(FAMILIES[architecture].model_type), architecture)


@pytest.mark.parametrize("architecture", FAMILIES)
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("logits_scaling", 8.0),
        ("attention_multiplier", 0.0078125),
        ("partial_rotary_factor", 0.5),
        ("dual_chunk_attention_config", {"chunk_size": 262144}),
        ("rope_parameters", {"rope_theta": 1e4, "rope_type": "default", "mrope_section": [16, 24, 24]}),
        ("rope_parameters", {"rope_theta": 1e4, "partial_rotary_factor": 0.25}),
        ("attention_dropout", 0.1),
        ("model_type", "cohere"),
    ],
)
def test_a_setting_that_changes_the_model_is_refused_by_name(
    architecture: str, key: str, value: object
) -> None:
    read = FAMILIES[architecture].settings
    if key in read or isinstance(value, dict) and read & value.keys():
        pytest.skip("read by this family")
    with pytest.raises(InputError, match=key):
        refuse(defaults(FAMILIES[architecture].model_type) | {key: value}, architecture)


@pytest.mark.parametrize("value", [None, False, 0, 0.0, "", [], {}])
def test_a_setting_that_is_off_passes(value: object) -> None:
    refuse({"final_logit_softcapping": value})


def test_a_window_is_refused_where_nothing_turns_it_off() -> None:
    refuse({"sliding_window": 4096, "use_sliding_window": False}, "Qwen2ForCausalLM")
    with pytest.raises(InputError, match="sliding_window is 4096"):
        refuse({"sliding_window": 4096})


def settings_of_other_families() -> Iterator[tuple[str, str, Any]]:
    for family in OTHER_FAMILIES:
        if importlib.util.find_spec(f"transformers.models.{family}") is None:
            continue
        for key, value in defaults(family).items():
            if key not in SHAPING | WITHOUT_EFFECT | {"model_type"} and value:
                yield family, key, value


def test_what_other_families_set_is_refused_unless_it_is_a_value_that_is_trained() -> None:
    found = list(settings_of_other_families())
    assert len(found) > 50
    for family, key, value in found:
        if value in ONLY.get(key, ()):
            continue
        with pytest.raises(InputError, match=re.escape(key)):
            refuse({key: value})
            pytest.fail(f"{key} of {family} passed")


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.model_type)
def test_nothing_that_transformers_computes_with_counts_as_without_effect(family: Family) -> None:
    kind = family.model_type
    folder = FOLDERS.get(kind, kind)
    module = importlib.import_module(f"transformers.models.{folder}.modeling_{folder}")
    # What a text model does not have comes behind it.
    source, *_ = re.split(r"\nclass \w+MultiModalProjector", inspect.getsource(module))
    read = set(re.findall(r"config\.(\w+)", source))
    read |= set(re.findall(r'getattr\((?:self\.)?config, "(\w+)"', source))
    # Other names that transformers' models know a setting by.
    aliases = transformers.AutoConfig.for_model(kind).attribute_map
    read = {aliases.get(name, name) for name in read}
    known = SHAPING | family.settings | ONLY.keys() | family.only.keys()
    assert read - NOT_OF_THE_FORWARD_PASS.keys() - WINDOWS <= known


@pytest.mark.parametrize(
    "family", ["llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "granite", "olmo2", "glm4"]
)
def test_nothing_that_sglang_computes_with_counts_as_without_effect(family: str) -> None:
    # SGLang's package is found, not imported: that loads its engine.
    found = importlib.util.find_spec("sglang")
    assert found is not None and found.submodule_search_locations is not None
    root = Path(found.submodule_search_locations[0])
    source = (root / "srt" / "models" / f"{family}.py").read_text(encoding="utf-8")
    read = set(re.findall(r"config\.(\w+)", source))
    read |= set(re.findall(r'(?:getattr|hasattr)\(\s*(?:self\.)?config,\s*"(\w+)"', source))
    assert not (read & WITHOUT_EFFECT) - NOT_OF_THE_FORWARD_PASS.keys()
