"""Terms stand with their numbers: as a name, or as a mapping with a name."""

import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from fakes.recipes import make_recipe

from asyncrl.algorithms.surrogates import clip_range
from asyncrl.errors import InputError
from asyncrl.recipe import Algorithm, Recipe
from asyncrl.recipe.algorithm_terms import TURN_ADVANTAGES, Sapo
from asyncrl.recipe.file import dump_recipe, load_recipe, parse_recipe
from asyncrl.recipe.terms import agrees, chosen, kinds_in, merged, names_of
from asyncrl.recipe.unread_keys import USES

RAW: dict[str, Any] = {
    "name": "t",
    "model": {"path": "/m"},
    "data": {"train": "/d", "heldout": "/h"},
    "trainer": {"num_steps": 60},
}


def load(folder: Path, algorithm: dict[str, Any], *overrides: str) -> Recipe:
    (folder / "recipe.yaml").write_text(yaml.safe_dump({**RAW, "algorithm": algorithm}))
    return load_recipe(folder / "recipe.yaml", overrides)


def test_a_name_alone_is_a_term_with_its_defaults() -> None:
    short = make_recipe(Path("m"), algorithm={"surrogate": "sapo", "kl": 0.1})
    assert short == make_recipe(
        Path("m"), algorithm={"surrogate": {"name": "sapo"}, "kl": {"coefficient": 0.1}}
    )
    assert chosen(short.algorithm.surrogate, Sapo).tau_negative == 1.05


def test_a_mapping_without_a_name_has_numbers_of_the_default_term() -> None:
    recipe = make_recipe(Path("m"), algorithm={"importance_weight": {"cap": 3.0}})
    assert recipe.model_dump()["algorithm"]["importance_weight"] == {
        "name": "truncated",
        "cap": 3.0,
        "floor": 0.0,
    }


@pytest.mark.parametrize(
    ("overrides", "surrogate"),
    [
        (["algorithm.surrogate.tau_positive=2.0"], {"tau_positive": 2.0, "tau_negative": 1.05}),
        (["algorithm.surrogate=sapo"], {"tau_positive": 1.0, "tau_negative": 1.05}),
        (["algorithm.surrogate={name: sapo, tau_negative: 3.0}"], {"tau_positive": 1.0, "tau_negative": 3.0}),
        (
            ["algorithm.surrogate=sapo", "algorithm.surrogate.tau_negative=3.0"],
            {"tau_positive": 1.0, "tau_negative": 3.0},
        ),
    ],
)
def test_an_override_reaches_into_a_short_form(
    tmp_path: Path, overrides: list[str], surrogate: dict[str, float]
) -> None:
    recipe = load(tmp_path, {"surrogate": "sapo"}, *overrides)
    assert recipe.algorithm.surrogate.model_dump() == {"name": "sapo", **surrogate}


def test_an_override_reaches_into_a_section_that_is_one_word(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(
        yaml.safe_dump(RAW | {"data": {**RAW["data"], "selection": "learnable"}})
    )
    selection = load_recipe(tmp_path / "recipe.yaml", ["data.selection.floor=0.2"]).data.selection
    assert (selection.by, selection.floor) == ("learnable", 0.2)


def test_an_override_finds_a_term_in_a_list_by_its_name(tmp_path: Path) -> None:
    algorithm = {"trust_region": ["ipo", {"name": "kpop", "limit": 0.2}]}
    limits = ["algorithm.trust_region.ipo.limit=0.1", "algorithm.trust_region.kpop.limit=0.3"]
    recipe = load(tmp_path, algorithm, *limits)
    assert [(term.name, term.limit) for term in recipe.algorithm.trust_region] == [
        ("ipo", 0.1),
        ("kpop", 0.3),
    ]  # type: ignore[union-attr]
    with pytest.raises(InputError, match="the list has no term dppo_tv, but ipo, kpop"):
        load(tmp_path, algorithm, "algorithm.trust_region.dppo_tv.limit=0.1")


def test_numbers_over_those_of_a_preset_keep_the_others(tmp_path: Path) -> None:
    recipe = load(tmp_path, {"preset": "sapo"}, "algorithm.surrogate.tau_positive=2.0", "algorithm.kl=0.1")
    assert recipe.algorithm.surrogate == Sapo(name="sapo", tau_positive=2.0, tau_negative=1.05)
    assert recipe.algorithm.kl.coefficient == 0.1
    listed = load(tmp_path, {"preset": "m2po"}, "algorithm.trust_region.second_moment_clip.limit=0.1")
    assert listed.model_dump()["algorithm"]["trust_region"] == [{"name": "second_moment_clip", "limit": 0.1}]
    gae = load(tmp_path, {"preset": "vapo", "advantage": {"gamma": 0.9}}).algorithm.advantage
    assert (gae.name, gae.gamma, gae.length_alpha) == ("gae", 0.9, 0.05)  # type: ignore[union-attr]


def test_another_term_takes_none_of_the_presets_numbers(tmp_path: Path) -> None:
    assert load(tmp_path, {"preset": "sapo", "surrogate": "ratio"}).algorithm.surrogate.name == "ratio"
    assert load(tmp_path, {"preset": "ppo"}, "algorithm.advantage=grpo").algorithm.advantage.name == "grpo"


def test_an_overlay_merges_numbers_of_the_same_term_and_replaces_another(tmp_path: Path) -> None:
    overlay = tmp_path / "overlay.yaml"
    overlay.write_text("algorithm: {surrogate: {name: sapo, tau_positive: 2.0}}")
    same = load(tmp_path, {"surrogate": {"name": "sapo", "tau_negative": 3.0}}, f"@{overlay}")
    assert same.algorithm.surrogate == Sapo(name="sapo", tau_positive=2.0, tau_negative=3.0)
    other = load(tmp_path, {"surrogate": {"name": "ppo_clip", "dual_clip": 3.0}}, f"@{overlay}")
    assert other.algorithm.surrogate == Sapo(name="sapo", tau_positive=2.0)


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [
        (
            {"surrogate": {"tau_positive": 2.0}},
            "algorithm.surrogate.tau_positive is 2.0, but nothing reads it: set algorithm.surrogate to "
            "{name: sapo, tau_positive: 2.0} (tau_positive belongs to sapo), or remove it.",
        ),
        (
            {"importance_weight": {"name": "none", "cap": 3.0}},
            "(cap belongs to truncated, sequence_truncated, sequence_masked), or remove it.",
        ),
        ({"rejection": [{"name": "token_veto", "high": 3.0}]}, "(high belongs to geometric_mean), or remove"),
        ({"surrogate": {"name": "sapo", "tau": 3.0}}, "unknown key algorithm.surrogate.tau."),
        ({"surrogate": {"name": "sap"}}, "algorithm.surrogate is 'sap': input should be"),
        ({"entropy_control": "./own.py:mine"}, "algorithm.entropy_control is './own.py:mine': input should"),
        ({"trust_region": [{"limit": 0.1}]}, "algorithm.trust_region.0 is null: input should be 'dppo_tv'"),
    ],
)
def test_a_number_of_another_term_is_refused_with_its_place(algorithm: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as error:
        make_recipe(Path("m"), algorithm=algorithm)
    assert said in str(error.value)


@pytest.mark.parametrize("has_defaults", [True, False])
def test_every_term_is_written_and_read_back(has_defaults: bool) -> None:
    keys = {}
    for section in ("algorithm", "trainer"):
        fields = type(getattr(make_recipe(Path("m")), section)).model_fields
        for key, field in fields.items():
            keys |= {
                (section, key, name): field for kind in kinds_in(field.annotation) for name in names_of(kind)
            }
    assert len(keys) > 40
    for section, key, name in keys:
        is_list = key in ("rejection", "trust_region")
        raw = {**RAW, section: {**RAW.get(section, {}), key: [name] if is_list else name}}
        if name == "kl_cov":
            raw["trainer"] = {"num_steps": 60, "optimizer_steps_per_batch": 2}
        recipe = parse_recipe(raw, source="t")
        again = parse_recipe(yaml.safe_load(dump_recipe(recipe, has_defaults=has_defaults)), source="t")
        assert again == recipe, name


def test_plain_data_in_a_short_form_agrees_with_all_that_it_stands_for() -> None:
    whole = {"name": "sapo", "tau_positive": 1.0}
    assert agrees("sapo", whole) and agrees({"name": "sapo"}, whole) and agrees(whole, whole)
    assert not agrees("ratio", whole) and not agrees({"tau_positive": 2.0}, whole)
    assert agrees({"name": "ratio"}, "ratio") and not agrees({"name": "ratio", "k": 1}, "ratio")
    assert agrees(["ipo"], [{"name": "ipo", "limit": 0.3}]) and not agrees(["ipo"], ["ipo", "kpop"])


def test_mappings_that_are_not_terms_merge_key_by_key() -> None:
    below = {"verifying": {"options": {"a": 1, "b": 2}}, "rollout": {"top_p": 0.5}}
    above = {"verifying": {"options": {"a": 3}}, "data": {"train": "x"}}
    assert merged(below, above, Recipe) == {
        "verifying": {"options": {"a": 3, "b": 2}},
        "rollout": {"top_p": 0.5},
        "data": {"train": "x"},
    }


OTHER_VALUES: dict[str, Any] = {
    "algorithm.mask_high": 6.0,
    "algorithm.kl.estimator": "k2",
    "algorithm.kl.place": "reward",
    "algorithm.kl.refresh_steps": 2,
    "algorithm.kl.refresh_resets_optimizer": True,
    "trainer.loss_scale_growth_steps": 9,
}
OFF = {"surrogate": "reinforce", "importance_weight": "none"}
"""A loss that reads none of the shared numbers."""


def nested(key: str, value: Any) -> dict[str, Any]:
    for name in reversed(key.split(".")):
        value = {name: value}
    return value


@pytest.mark.parametrize(("key", "switch"), [(key, use.switch) for use in USES for key in use.keys])
def test_a_key_whose_term_is_off_is_refused_with_what_would_read_it(key: str, switch: str) -> None:
    key = "critic.warmup_steps" if key == "critic" else key
    value = OTHER_VALUES.get(key, 3 if key.startswith("critic") else 0.35)
    stated = nested(key, value)
    stated["algorithm"] = OFF | stated.get("algorithm", {})
    with pytest.raises(InputError) as error:
        make_recipe(Path("m"), **stated)
    assert f"{key} is {value!r}, but nothing reads it: set {switch}, or remove it." in str(
        error.value
    ).replace("true", "True")


def make(**algorithm: Any) -> Recipe:
    return make_recipe(Path("m"), algorithm=algorithm, trainer={"optimizer_steps_per_batch": 2})


def test_a_key_whose_term_is_on_is_read() -> None:
    make(kl={"coefficient": 0.1, "estimator": "k2"}, clip_high=0.4, rejection=["token_range"], mask_low=0.6)
    make_recipe(Path("m"), critic={"warmup_steps": 1}, algorithm={"advantage": "gae"})


def test_the_default_of_another_surrogate_is_not_a_setting() -> None:
    make(surrogate="reinforce")
    with pytest.raises(InputError, match="clip_high is 0.28, but nothing reads it"):
        make(surrogate="reinforce", clip_high=0.28)


def test_a_preset_may_state_what_a_changed_recipe_no_longer_reads() -> None:
    recipe = make(preset="gspo", surrogate="reinforce")
    assert recipe.algorithm.clip_high == 4e-4
    assert make(preset="reinforce_pp", kl=0.0).algorithm.kl.estimator == "k1"
    with pytest.raises(InputError, match="clip_high is 0.3, but nothing reads it"):
        make(preset="gspo", surrogate="reinforce", clip_high=0.3)


def test_a_function_of_the_recipes_own_reads_its_options_alone() -> None:
    make(surrogate={"name": "my.terms:loss", "options": {"clip_high": 0.3}})
    with pytest.raises(InputError, match="clip_high is 0.3, but nothing reads it"):
        make(surrogate="my.terms:loss", clip_high=0.3)


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [
        ({"advantage": "magic"}, r"algorithm\.advantage is 'magic'.*'grpo', 'dr_grpo'"),
        ({"mask_low": 9}, r"algorithm\.mask_low is 9.*algorithm\.mask_high is 5"),
        (
            {"clip_around": "behavior"},
            r"the same ratio would count twice. Set algorithm\.importance_weight to none",
        ),
        (
            {"surrogate": "reinforce", "clip_around": "behavior", "importance_weight": "none"},
            r"reinforce has no ratio: .* Set algorithm\.clip_around to proximal",
        ),
        (
            {"surrogate": {"name": "gspo", "dual_clip": 3}},
            r"dual_clip is 3, but nothing reads it: set algorithm\.surrogate to \{name: ppo_clip, dual",
        ),
        *(
            (keys, rf"which excludes a ratio of 1.*{way}")
            for keys, way in (
                ({"mask_low": 1.5}, r"Expected at most 1\. Lower algorithm\.mask_low"),
                ({"mask_high": 0.9}, r"Expected at least 1\. Raise algorithm\.mask_high"),
                (
                    {"rejection": [{"name": "geometric_mean", "low": 1.005}]},
                    r"Lower algorithm\.rejection\.geometric_mean\.low",
                ),
                (
                    {"rejection": [{"name": "geometric_mean", "high": 0.995}]},
                    r"Raise algorithm\.rejection\.geometric_mean\.high",
                ),
                ({"importance_weight": {"cap": 0.5}}, r"Raise algorithm\.importance_weight\.cap"),
                ({"importance_weight": {"floor": 1.5}}, r"Lower algorithm\.importance_weight\.floor"),
                (
                    {"rejection": [{"name": "token_veto", "low": 1.5}]},
                    r"Lower algorithm\.rejection\.token_veto\.low",
                ),
            )
        ),
        ({"credit": "turns", "advantage": "gae"}, r"takes each reward at its token already\. Remove"),
        (
            {"credit": "turns", "advantage": "pass_at_k"},
            r"pass_at_k is defined for the rewards of whole trajectories alone\. Set algorithm\.credit to",
        ),
        ({"credit": "turns", "advantage": "opo"}, r"algorithm\.advantage to one of grpo, dr_grpo, rloo"),
        ({"credit": "turns", "advantage": "./own.py:mine"}, r"own\.py:mine is defined for the rewards of"),
        (
            {"credit": "turns"},
            r"neither turns\.environment nor turns\.tools is set: every trajectory has one turn",
        ),
        (
            {"importance_weight": {"name": "truncated", "floor": 3}},
            r"the range is empty\. Lower algorithm\.importance_weight\.floor",
        ),
        (
            {"importance_weight": {"name": "masked", "floor": 0.5}},
            r"nothing reads it: set algorithm\.importance_weight to \{name: truncated, floor: 0\.5\}",
        ),
    ],
)
def test_terms_that_cannot_work_are_refused_with_a_way_out(algorithm: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        make_recipe(Path("m"), algorithm=algorithm)


@pytest.mark.parametrize("advantage", TURN_ADVANTAGES)
def test_turns_may_have_advantages_of_their_own_where_trajectories_have_turns(advantage: str) -> None:
    algorithm = {"credit": "turns", "advantage": advantage}
    assert (
        make_recipe(Path("m"), algorithm=algorithm, turns={"tools": ["calculator"]}).algorithm.credit
        == "turns"
    )


@pytest.mark.parametrize(
    ("surrogate", "low", "high"),
    [
        ("ppo_clip", 0.8, 1.28),
        ("gspo", 0.8, 1.2),
        ("cispo", 0.0, 1.2),
        ("gmpo", math.exp(-0.4), math.exp(0.4)),
    ],
)
def test_a_clip_range_that_is_not_set_is_that_of_the_surrogates_paper(
    surrogate: str, low: float, high: float
) -> None:
    assert clip_range(Algorithm(surrogate=surrogate)) == pytest.approx((low, high), abs=1e-4)
    set_high = Algorithm(surrogate=surrogate, clip_high=0.5)
    assert clip_range(set_high) == pytest.approx((low, 1.5), abs=1e-4)
