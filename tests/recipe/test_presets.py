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
OF_THE_SOURCES: dict[str, dict[str, dict[str, Any]]] = yaml.safe_load("""
grpo:
  algorithm: {advantage: grpo, reduction: sequence_mean, surrogate: ppo_clip, clip_low: 0.2, clip_high: 0.2,
    kl: {coefficient: 0.04, estimator: k3, place: loss}}
dr_grpo:
  algorithm: {advantage: dr_grpo, reduction: dr_grpo_constant, surrogate: ppo_clip, clip_low: 0.2,
    clip_high: 0.2, kl: {coefficient: 0.0}}
dapo:
  algorithm: {advantage: grpo, reduction: token_mean, surrogate: ppo_clip, clip_low: 0.2, clip_high: 0.28,
    kl: {coefficient: 0.0}, overlong: {buffer_tokens: 4096, penalty: 0.5}}
  replay: {drops_no_signal: true}
gspo:
  algorithm: {advantage: grpo, reduction: sequence_mean, surrogate: gspo, clip_low: 0.0003, clip_high: 0.0004,
    kl: {coefficient: 0.0}}
cispo:
  algorithm: {advantage: grpo, reduction: token_mean, surrogate: cispo, clip_low: null, clip_high: 4.0,
    clip_around: behavior, importance_weight: none, kl: {coefficient: 0.0}}
  trainer: {adam_beta2: 0.95, adam_epsilon: 1.0e-15}
reinforce_pp:
  algorithm: {advantage: reinforce_pp, reduction: token_mean, surrogate: ppo_clip, clip_low: 0.2,
    clip_high: 0.2, kl: {coefficient: 0.01, estimator: k1, place: reward}}
ppo:
  algorithm: {advantage: {name: gae, gamma: 1.0, gae_lambda: 1.0, is_whitened: true}, reduction: token_mean,
    surrogate: {name: ppo_clip, dual_clip: 3.0}, clip_low: 0.2, clip_high: 0.2, kl: {coefficient: 0.0}}
  critic: {learning_rate: 1.0e-5, value_clip: 0.5}
scale_rl:
  algorithm: {advantage: dr_grpo, divides_by_batch_std: true, reduction: prompt_mean, surrogate: cispo,
    clip_low: null, clip_high: 4.0, clip_around: behavior, importance_weight: none, kl: {coefficient: 0.0}}
  model: {float32_logits: true}
  replay: {drops_no_signal: true}
  rollout: {max_staleness: 8}
  trainer: {learning_rate: 5.0e-7, warmup_steps: 100, adam_beta2: 0.999, adam_epsilon: 1.0e-15,
    weight_decay: 0.01}
dppo:
  algorithm: {advantage: dr_grpo, reduction: dr_grpo_constant, surrogate: cispo, clip_low: null,
    clip_high: 9999.0, clip_around: behavior, importance_weight: none,
    trust_region: [{name: dppo_tv, limit: 0.15}], kl: {coefficient: 0.0}}
ipo:
  algorithm: {advantage: dr_grpo, reduction: token_mean, surrogate: ratio, clip_around: behavior,
    importance_weight: none, trust_region: [{name: ipo, limit: 0.3}], behavior_kl_coefficient: 0.0,
    kl: {coefficient: 0.0}}
sapo:
  algorithm: {advantage: grpo, reduction: sequence_mean, surrogate: {name: sapo, tau_positive: 1.0,
    tau_negative: 1.05}, kl: {coefficient: 0.0}}
m2po:
  algorithm: {advantage: grpo, reduction: token_mean, surrogate: ratio, clip_around: behavior,
    importance_weight: none, trust_region: [{name: second_moment_clip, limit: 0.04}],
    kl: {coefficient: 0.0}}
vapo:
  algorithm: {advantage: {name: gae, gamma: 1.0, length_alpha: 0.05}, reduction: token_mean,
    surrogate: ppo_clip, clip_low: 0.2, clip_high: 0.28, nll_coefficient: 0.1, kl: {coefficient: 0.0}}
  critic: {gae_lambda: 1.0, warmup_steps: 50}
sao:
  algorithm: {advantage: {name: gae, gamma: 1.0, length_alpha: 1.5, is_whitened: false},
    reduction: token_mean, surrogate: ratio, clip_around: behavior, importance_weight: none,
    trust_region: [{name: band, low: 0.7, high: 6.0}], kl: {coefficient: 0.0}}
  rollout: {samples_per_group: 1, max_staleness: 4}
  critic: {gae_lambda: 1.0, passes: 2, advantages_from: after, frozen: attention, value_clip: null,
    learning_rate: 5.0e-6, clip_grad_norm: 10.0, warmup_steps: 10}
flash_reinforce:
  algorithm: {advantage: batch_mean, reduction: sequence_mean, surrogate: ratio, clip_around: behavior,
    importance_weight: none, rejection: [{name: sequence_kl, limit: 0.005}], kl: {coefficient: 0.0}}
  rollout: {samples_per_group: 1, max_staleness: 4}
max_rl:
  algorithm: {advantage: max_rl, reduction: token_mean, surrogate: ppo_clip, clip_low: 0.2, clip_high: 0.2,
    kl: {coefficient: 0.0}}
  trainer: {clip_grad_norm: 0.3}
a3po:
  algorithm: {advantage: grpo, reduction: token_mean, surrogate: ppo_clip, clip_low: 0.4, clip_high: 0.4,
    proximal: interpolated, importance_weight: masked, mask_low: 0.0, mask_high: 5.0, kl: {coefficient: 0.0}}
recommended:
  algorithm: {advantage: dr_grpo, divides_by_batch_std: true, reduction: token_mean, surrogate: ppo_clip,
    clip_low: 0.2, clip_high: 0.28, importance_weight: {name: truncated, cap: 2.0}, kl: {coefficient: 0.0}}
  model: {float32_logits: true}
  replay: {drops_no_signal: true}
  rollout: {max_staleness: 4}
  trainer: {learning_rate: 1.0e-6, warmup_steps: 10}
""")
"""By preset and section, for responses of 20,480 tokens."""


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
    wanted = flat(OF_THE_SOURCES[name])
    assert PRESETS[name].keys(MAX_NEW_TOKENS) == wanted
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
    wanted = {key: value for key, value in flat(OF_THE_SOURCES[name]).items() if key not in flat(stated)}
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
