"""docs/models.md says of each accepted architecture what the code does with it and what is checked of it."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from fakes.recipes import make_recipe
from families.known import TINY
from families.properties import MARKERS, PROPERTIES, cell, of_each_family

from asyncrl.errors import InputError
from asyncrl.model import gguf
from asyncrl.model.families import FAMILIES
from asyncrl.model.families.family import Family
from asyncrl.model.folder import ONLY, read_shape
from asyncrl.model.layout import check_layout
from asyncrl.model.rotary import NEEDED
from asyncrl.model.shape import ModelShape
from asyncrl.model.supported import check_adapters
from asyncrl.model.weights import TRAINED_FROM
from asyncrl.recipe.sections.model import TARGETS

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "models.md").read_text(encoding="utf-8")
SIZES = (
    *("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size"),
    *("max_position_embeddings", "rms_norm_eps"),
)


def shape_of(architecture: str, folder: Path, **settings: Any) -> ModelShape:
    """The shape of a model of `architecture` whose sizes are all 1, that of the hidden state 8."""
    family = FAMILIES[architecture]
    read = family.settings - {"no_rope_layers", "partial_rotary_factor"}
    if "num_experts" in read:
        # One setting by two names.
        read -= {"num_local_experts"}
    read -= {"sliding_window_pattern", "_sliding_window_pattern"}
    if family.has_window:
        read -= {"sliding_window"}
    only = {name: values[0] for name, values in family.only.items()}
    config = {"architectures": [architecture], **only, **dict.fromkeys([*SIZES, *read], 1), **settings}
    config |= {"hidden_size": 8}
    if family.sliding_rope_theta is None and "rope_scaling" not in settings:
        config["rope_parameters"] = {"rope_type": "default"}
    if "full_attention_interval" in read:
        config["full_attention_interval"] = 2
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return read_shape(folder)


def test_the_page_has_the_row_of_each_family_and_no_other(tmp_path: Path) -> None:
    rows = [row_of(family, tmp_path) for family in FAMILIES.values()]
    assert [line for line in PAGE.splitlines() if "ForCausalLM` | `" in line] == rows


def row_of(family: Family, folder: Path) -> str:
    shape = shape_of(family.architecture, folder)
    answers = {True: "yes", False: "no"}
    cells = (
        family.models,
        f"`{family.architecture}`",
        f"`{family.model_type}`",
        "dense" if shape.num_experts is None else "mixture of experts",
        answers[shape.has_qkv_bias],
        answers[shape.has_qk_norm or shape.has_wide_qk_norm],
        layers_of(shape),
        {TARGETS: "yes", (): "no"}.get(family.adapter_targets, "attention alone"),
        answers[family.architecture in gguf.ARCHITECTURES.values()],
    )
    return f"| {' | '.join(cells)} |"


def layers_of(shape: ModelShape) -> str:
    """The differences from a Llama's layers, as the page names them."""
    parts = {
        "norms behind": shape.norm_places == "behind",
        "norms before and behind": shape.norm_places == "both",
        "1 + w norms": shape.norms_add_one,
        "GeGLU": shape.activation == "gelu_tanh",
        "multipliers": shape.has_multipliers() and not shape.norms_add_one,
        "sliding layers": bool(shape.sliding_layers),
        "sinks": shape.has_sinks,
        "biases of all layers": shape.has_linear_biases,
        "clamped SwiGLU": shape.gate_limit is not None,
        "soft caps": shape.attention_cap is not None,
        "two rotary bases": shape.sliding_rotation is not None,
        "linear attention in most": bool(shape.delta_layers),
        "output gates": shape.has_output_gate,
        "a quarter of each head rotated": shape.rotation is not None and shape.rotation.share == 0.25,
        "half of each head rotated": shape.rotation is not None and shape.rotation.share == 0.5,
        "latent attention": shape.latent is not None,
        "layers without rotation": bool(shape.unrotated_layers),
    }
    return ", ".join(part for part, is_there in parts.items() if is_there) or "as Llama's"


def test_the_page_has_the_cell_of_each_property_of_each_family() -> None:
    header = ["family", *PROPERTIES]
    cells = [
        [f"`{FAMILIES[each].model_type}`", *(cell(each, name) for name in PROPERTIES)] for each in FAMILIES
    ]
    assert table("family", "transformers") == [header, *cells]


def test_the_page_says_what_is_compared_in_each_cell_and_how_it_is_run() -> None:
    rows = [
        [f"**{name}**", each.checked, f"`tests/{each.test}`", MARKERS[each.marker]]
        for name, each in PROPERTIES.items()
    ]
    assert table("property", "compared") == [["property", "compared", "test", "run by"], *rows]


def table(*first: str) -> list[list[str]]:
    """The cells of the page's table whose header begins so, without the line under it."""
    lines = PAGE.splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith(f"| {' | '.join(first)} |"))
    rows = []
    for line in lines[begin:]:
        if not line.startswith("|"):
            break
        rows.append([part.strip() for part in line.strip("|").split(" | ")])
    return [rows[0], *rows[2:]]


@pytest.mark.parametrize("name", PROPERTIES)
def test_a_property_is_tested_for_each_family_by_the_test_that_it_names(name: str) -> None:
    place, _, test = PROPERTIES[name].test.partition("::")
    tree = ast.parse((TESTS / place).read_text(encoding="utf-8"))
    (found,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == test)
    calls = [each for each in found.decorator_list if isinstance(each, ast.Call)]
    given = [
        each.args
        for each in calls
        if isinstance(each.func, ast.Name) and each.func.id == of_each_family.__name__
    ]
    assert name in [argument.value for (*arguments,) in given for argument in arguments]


def test_every_family_has_an_entry_of_tiny_models_and_a_missing_one_fails() -> None:
    assert TINY.keys() == FAMILIES.keys()
    for name in PROPERTIES:
        given = {case.values[0] for case in of_each_family(name).args[1]}
        assert given == {each for each in FAMILIES if cell(each, name) == "yes"}
    assert all(
        cell(each, name).startswith(("yes", "no: ", "GPU only: ")) for each in TINY for name in PROPERTIES
    )


@pytest.mark.parametrize("architecture", FAMILIES)
def test_adapters_and_layouts_that_the_page_says_no_to_are_refused(architecture: str, tmp_path: Path) -> None:
    shape = shape_of(architecture, tmp_path)
    adapted = make_recipe(tmp_path, model={"lora": {"rank": 1, **TINY[architecture].lora}})
    spread, split = (
        make_recipe(tmp_path, trainer={"num_processes": 2, "parallel": {key: 2}})
        for key in ("expert", "context")
    )
    refused = (
        ("LoRA", check_adapters, adapted),
        ("EP 2", check_layout, spread),
        ("CP 2", check_layout, split),
    )
    for name, check, recipe in refused:
        if cell(architecture, name).startswith("no: "):
            with pytest.raises(InputError, match="model.lora|trainer.parallel.(expert|context)"):
                check(recipe, shape)


@pytest.mark.parametrize("kind", ["dynamic", "longrope", "proportional"])
def test_rotary_positions_that_the_page_names_as_refused_are_refused(kind: str, tmp_path: Path) -> None:
    assert f"`{kind}`" in PAGE
    with pytest.raises(InputError, match="cannot be trained"):
        shape_of("Qwen2ForCausalLM", tmp_path, rope_scaling={"rope_type": kind, "factor": 4.0})


def test_the_page_names_the_accepted_rotary_positions() -> None:
    (row,) = (line for line in PAGE.splitlines() if line.startswith("| rotary positions |"))
    accepted = row.split("|")[2]
    assert all(f"`{kind}`" in accepted for kind in NEEDED)


def test_the_page_has_the_accepted_types_of_weights() -> None:
    *others, last = TRAINED_FROM
    assert f"safetensors in {', '.join(others)} or {last}" in PAGE


def test_settings_that_the_page_names_as_refused_have_one_accepted_value() -> None:
    for setting in ("use_sliding_window", "attention_bias", "mlp_bias", "partial_rotary_factor"):
        assert f"`{setting}`" in PAGE
        assert len(ONLY[setting]) == 1


@pytest.mark.parametrize("is_tied", [True, False])
def test_the_output_layer_may_be_tied(is_tied: bool, tmp_path: Path) -> None:
    assert shape_of("LlamaForCausalLM", tmp_path, tie_word_embeddings=is_tied).is_tied is is_tied
