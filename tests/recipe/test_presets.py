"""Presets: the settings of their sources, overridden by what a recipe states, and resolved when stored."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from asyncrl.errors import InputError
from asyncrl.recipe import Algorithm, Recipe
from asyncrl.recipe.file import dump_recipe, load_recipe, parse_recipe
from asyncrl.recipe.presets import PRESETS, markdown
from asyncrl.recipe.sections.section import plain_at
from asyncrl.recipe.terms import agrees
from asyncrl.recipe.yaml_text import write_in_line
from asyncrl.run.folder import first_difference

MAX_NEW_TOKENS = 20480


def raw_recipe(preset: str | None, **sections: dict[str, Any]) -> dict[str, Any]:
    raw: dict[str, Any] = {"name": "t", "model": {"path": "/m"}, "data": {"train": "/d", "heldout": "/h"}}
    named = {} if preset is None else {"preset": preset}
    for name, keys in [
        ("algorithm", named),
        ("rollout", {"max_new_tokens": MAX_NEW_TOKENS}),
        # More than a critic trains alone.
        ("trainer", {"num_steps": 60}),
        *sections.items(),
    ]:
        raw[name] = {**raw.get(name, {}), **keys}
    return raw


def make_recipe(preset: str | None, **sections: dict[str, Any]) -> Recipe:
    return parse_recipe(raw_recipe(preset, **sections), source="test")


def flat(sections: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {f"{name}.{key}": value for name, keys in sections.items() for key, value in keys.items()}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_sets_what_its_source_sets_and_nothing_else(name: str):
    recipe, plain = make_recipe(name), make_recipe(None)
    wanted = PRESETS[name].keys(MAX_NEW_TOKENS)
    assert all(agrees(value, plain_at(recipe, key)) for key, value in wanted.items())
    before, after = (
        flat({section: keys for section, keys in each.model_dump().items() if isinstance(keys, dict)})
        for each in (plain, recipe)
    )
    changed = {key for key in before if before[key] != after[key]}
    if recipe.algorithm.surrogate.name in ("ratio", "sapo"):
        # They clip nothing; the key has another default for them.
        changed.discard("algorithm.clip_high")
    assert changed <= {*wanted, "algorithm.preset"}


@pytest.mark.parametrize("name", PRESETS)
def test_what_the_recipe_states_holds_instead(name: str):
    stated: dict[str, dict[str, Any]] = {
        "algorithm": {"least_reward_spread": 0.5, "advantage": "rloo"},
        "trainer": {"warmup_steps": 3},
    }
    if PRESETS[name].settings.get("rollout.samples_per_group") == 1:
        stated["rollout"] = {"samples_per_group": 8}
    recipe = make_recipe(name, **stated)
    assert (recipe.algorithm.least_reward_spread, recipe.algorithm.advantage.name) == (0.5, "rloo")
    assert recipe.trainer.warmup_steps == 3
    keys = PRESETS[name].keys(MAX_NEW_TOKENS)
    wanted = {key: value for key, value in keys.items() if key not in flat(stated)}
    assert all(agrees(value, plain_at(recipe, key)) for key, value in wanted.items())


@pytest.mark.parametrize("name", PRESETS)
def test_a_stored_recipe_is_resolved(name: str, tmp_path: Path):
    recipe = make_recipe(name, algorithm={"least_reward_spread": 0.5})
    stored = yaml.safe_load(dump_recipe(recipe))
    for key in PRESETS[name].keys(MAX_NEW_TOKENS):
        section, _, inner = key.partition(".")
        assert inner in stored[section]
    again = parse_recipe(stored, source="stored")
    assert again == recipe
    # A recipe that states the same keys itself resumes the run, whatever presets say by then.
    stored["algorithm"]["preset"] = None
    assert first_difference(recipe, parse_recipe(stored, source="stored")) is None


def test_the_penalty_for_length_begins_at_the_same_share_of_any_limit():
    recipe = make_recipe("dapo", rollout={"max_new_tokens": 1000})
    assert recipe.algorithm.overlong.buffer_tokens == 200
    assert (
        parse_recipe(raw_recipe("dapo") | {"rollout": {}}, source="t").algorithm.overlong.buffer_tokens == 12
    )


def test_a_preset_may_come_from_the_command_line(tmp_path: Path):
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(raw_recipe(None)))
    overrides = ["algorithm.preset=dapo", "algorithm.clip_high=0.3"]
    algorithm = load_recipe(tmp_path / "recipe.yaml", overrides).algorithm
    assert (algorithm.clip_high, algorithm.overlong.penalty) == (0.3, 0.5)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("dapoo", "algorithm.preset is 'dapoo', which is no preset. Did you mean dapo?"),
        ("zzz", "algorithm.preset is 'zzz', which is no preset. Known: grpo, dr_grpo, dapo,"),
    ],
)
def test_an_unknown_preset_is_refused_with_the_nearest(name: str, words: str):
    with pytest.raises(InputError, match=re.escape(words)):
        make_recipe(name)


@pytest.mark.parametrize("algorithm", [{"preset": 3}, "dapo", ["preset"]])
def test_what_is_no_name_is_refused_for_its_kind(algorithm: Any):
    with pytest.raises(InputError, match=r"algorithm.* (expected|should be)"):
        parse_recipe(raw_recipe(None) | {"algorithm": algorithm}, source="test")


def test_the_key_explains_each_preset():
    text = Algorithm.model_fields["preset"].description
    assert text is not None and all(f"\n{name}: " in text for name in PRESETS)


def test_a_table_has_the_settings_and_the_source_of_each_preset():
    for name, preset in PRESETS.items():
        *_, row = markdown(name).splitlines()
        assert row.startswith(f"| `{name}` |") and preset.source in row and preset.left_out in row
        for key, value in preset.settings.items():
            assert f"`{key}: {write_in_line(value)}`" in row, (name, key)
