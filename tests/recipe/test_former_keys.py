"""Recipes and runs with keys from before numbers stood with their terms."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from asyncrl.commands import main as cli
from asyncrl.errors import InputError
from asyncrl.readers.compare.recorded import flat
from asyncrl.recipe import Recipe
from asyncrl.recipe.file import dump_recipe, load_recipe, parse_recipe
from asyncrl.recipe.former_keys import CONSTANTS, NOW, as_now, translate_file
from asyncrl.recipe.keys import names
from asyncrl.run.folder import first_difference

FORMER = Path(__file__).with_name("former_recipe.yaml")
"""As a run wrote it: with every key of the sections."""
MINIMAL = {"name": "t", "model": {"path": "/m"}, "data": {"train": "/d", "heldout": "/h"}}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "advantage": (
        {"advantage": "gae", "gae_lambda": 0.95, "gae_length_alpha": 0.05, "gae_is_whitened": False},
        {"advantage": {"name": "gae", "gae_lambda": 0.95, "length_alpha": 0.05, "is_whitened": False}},
    ),
    "parts": (
        {"advantage": "gdpo", "part_weights": {"style": 0.5}},
        {"advantage": {"name": "gdpo", "part_weights": {"style": 0.5}}},
    ),
    "weight": (
        {"importance_cap": 3.0, "importance_floor": 0.1},
        {"importance_weight": {"name": "truncated", "cap": 3.0, "floor": 0.1}},
    ),
    "rejections": (
        {
            "rejection": ["token_range", "geometric_mean", "token_veto"],
            "geometric_low": 0.9,
            "veto_low": 1e-3,
        },
        {
            "rejection": [
                "token_range",
                {"name": "geometric_mean", "low": 0.9},
                {"name": "token_veto", "low": 1e-3},
            ]
        },
    ),
    "regions": (
        {"trust_region": ["dppo_tv", "second_moment_clip"], "tv_limit": 0.2, "second_moment_limit": 0.1},
        {
            "trust_region": [
                {"name": "dppo_tv", "limit": 0.2},
                {"name": "second_moment_clip", "limit": 0.1},
            ]
        },
    ),
    "surrogate": (
        # The clip range that it had was that of ppo_clip, and nothing read it.
        {"surrogate": "sapo", "sapo_tau_positive": 1.1, "clip_high": 0.4},
        {"surrogate": {"name": "sapo", "tau_positive": 1.1}},
    ),
    "kl": (
        {"kl_coefficient": 0.01, "kl_estimator": "k1", "kl_in": "reward", "reference_refresh_steps": 9},
        {"kl": {"coefficient": 0.01, "estimator": "k1", "place": "reward", "refresh_steps": 9}},
    ),
    "entropy": (
        {
            "entropy_coefficient": 0.1,
            "entropy_target": 0.2,
            "entropy_control": "clip_cov",
            "clip_cov_low": 0.5,
        },
        {
            "entropy_bonus": {"coefficient": 0.1, "target": 0.2},
            "entropy_control": {"name": "clip_cov", "low": 0.5},
        },
    ),
    "overlong": (
        {"overlong_buffer_tokens": 4, "overlong_penalty": 0.5},
        {"overlong": {"buffer_tokens": 4, "penalty": 0.5}},
    ),
    "preset": ({"preset": "sapo", "surrogate": "sapo", "importance_weight": "none"}, {"preset": "sapo"}),
}


def former(**algorithm: Any) -> dict[str, Any]:
    raw: dict[str, Any] = yaml.safe_load(FORMER.read_text())
    raw["algorithm"] |= algorithm
    return raw


def test_the_table_leads_from_keys_that_are_gone_to_keys_that_are_there() -> None:
    there = names()
    assert not there & {*NOW, *CONSTANTS}
    assert {place for places in NOW.values() for place in places} <= there


@pytest.mark.parametrize("case", CASES)
def test_the_resolved_recipe_of_a_former_run_is_read_as_it_would_be_written_now(case: str) -> None:
    before, now = CASES[case]
    found = parse_recipe(as_now(former(**before)), source="t")
    base = {
        key: found.model_dump()[key] for key in ("trainer", "critic", "run_folder", "name", "model", "data")
    }
    expected = parse_recipe({**base, "algorithm": now}, source="t")
    if case == "preset":
        assert found.algorithm.surrogate == expected.algorithm.surrogate
    else:
        assert found == expected


@pytest.mark.parametrize("surrogate", ["ppo_clip", "cispo", "gmpo"])
def test_a_clip_range_that_was_resolved_stays(surrogate: str) -> None:
    low = {"ppo_clip": 0.2, "cispo": None, "gmpo": 0.3297}[surrogate]
    raw = former(surrogate=surrogate, clip_low=low, clip_high=0.31)
    algorithm = parse_recipe(as_now(raw), source="t").algorithm
    assert (algorithm.clip_low, algorithm.clip_high) == (low, 0.31)


def test_schedule_and_optimizer_of_a_former_run() -> None:
    raw = former()
    raw["trainer"] |= {
        "learning_rate_schedule": "wsd",
        "schedule_steps": 30,
        "decay_steps": 5,
        "optimizer": "muon",
        "muon_momentum": 0.9,
    }
    trainer = parse_recipe(as_now(raw), source="t").model_dump()["trainer"]
    assert trainer["learning_rate_schedule"] == {
        "name": "wsd",
        "steps": 30,
        "min_share": 0.0,
        "decay_steps": 5,
    }
    assert trainer["optimizer"] == {"name": "muon", "learning_rate": None, "momentum": 0.9}


def test_a_function_of_a_former_run_gets_all_of_the_section_as_options() -> None:
    raw = former(surrogate="my.terms:loss", rejection=["my.terms:keep", "token_veto"], clip_high=0.3)
    algorithm = parse_recipe(as_now(raw), source="t").algorithm
    (_, keep), (_, loss) = algorithm.own_terms()
    assert loss.options == keep.options
    assert (loss.options["clip_high"], loss.options["sapo_tau_positive"]) == (0.3, 1.0)
    assert algorithm.clip_high == 0.2


def test_what_nothing_read_is_left_out_of_a_former_run() -> None:
    raw = former(surrogate="reinforce", clip_high=0.4, tv_limit=0.3)
    raw["critic"]["warmup_steps"] = 3
    recipe = parse_recipe(as_now(raw), source="t")
    assert recipe.critic.warmup_steps == 0 and recipe.algorithm.clip_high == 0.2


def test_a_former_run_is_read_from_its_folder_and_resumes(tmp_path: Path) -> None:
    raw = former(kl_coefficient=0.01) | {"run_folder": str(tmp_path)}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(raw))
    there = load_recipe(tmp_path / "recipe.yaml")
    now = parse_recipe(yaml.safe_load(dump_recipe(there)), source="t")
    assert now.algorithm.kl.coefficient == 0.01
    assert first_difference(there, now) is None
    overridden = load_recipe(tmp_path / "recipe.yaml", ["algorithm.kl.coefficient=0.02"])
    assert first_difference(overridden, now) == ("algorithm.kl.coefficient", 0.02, 0.01)


def test_former_and_later_runs_compare_by_the_same_keys() -> None:
    before = flat(as_now(former(surrogate="sapo", sapo_tau_positive=1.1)))
    assert (before["algorithm.surrogate"], before["algorithm.surrogate.tau_positive"]) == ("sapo", 1.1)
    assert "algorithm.sapo_tau_positive" not in before


@pytest.mark.parametrize(
    ("section", "key", "said"),
    [
        ("algorithm", "pass_k", "algorithm.advantage.k (of pass_at_k, pass_at_k_training)"),
        ("algorithm", "kl_in", "algorithm.kl.place. `asyncrl check --translate"),
        (
            "algorithm",
            "second_moment_limit",
            "algorithm.rejection.second_moment.limit or algorithm.trust_region.second_",
        ),
        ("trainer", "muon_newton_schulz_steps", "but it is 5 in every run now: remove it"),
    ],
)
def test_a_recipe_with_a_former_key_is_refused_with_the_key_now(section: str, key: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        parse_recipe({**MINIMAL, section: {key: 7}}, source="t")
    assert f"{section}.{key} is 7, but" in str(error.value) and said in str(error.value)


def test_an_override_with_a_former_key_is_refused(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(MINIMAL))
    with pytest.raises(
        InputError, match='override "algorithm.kl_coefficient=0.1": .* now algorithm.kl.coeff'
    ):
        load_recipe(tmp_path / "recipe.yaml", ["algorithm.kl_coefficient=0.1"])


FILE = """\
# My recipe.
name: mine
model: {path: /m}            # a base model
data: {train: /d, heldout: /h}

algorithm:
  rejection: [geometric_mean]   # engines differ
  geometric_low: 0.9
  kl_coefficient: 0.2       # it forgets without

  surrogate: sapo
  # Soft on what goes right.
  sapo_tau_positive: 1.1    # tried 1.2
  tv_limit: 0.3
  clip_high: 0.3

trainer: {learning_rate_schedule: wsd, decay_steps: 5, num_steps: 20}
"""
TRANSLATED = """\
# My recipe.
name: mine
model: {path: /m}            # a base model
data: {train: /d, heldout: /h}

algorithm:
  rejection: [{name: geometric_mean, low: 0.9}]   # engines differ
  kl: {coefficient: 0.2}       # it forgets without

  surrogate: {name: sapo, tau_positive: 1.1}
  # Soft on what goes right.
  # tried 1.2

trainer: {learning_rate_schedule: {name: wsd, decay_steps: 5}, num_steps: 20}
"""


def test_a_file_is_rewritten_with_its_comments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(FILE)
    assert cli.main(["check", str(path), "--translate"]) == 0
    said = capsys.readouterr().out
    assert "algorithm.tv_limit: removed, nothing read it" in said
    assert "algorithm.kl_coefficient: algorithm.kl.coefficient" in said
    assert path.read_text() == TRANSLATED
    assert load_recipe(path).algorithm.kl.coefficient == 0.2
    assert translate_file(path) == []


def test_an_overlay_is_rewritten_too(tmp_path: Path) -> None:
    path = tmp_path / "overlay.yaml"
    path.write_text("algorithm:\n  importance_cap: 3.0\n  kl_in: reward\n  kl_coefficient: 0.1\n")
    translate_file(path)
    assert yaml.safe_load(path.read_text()) == {
        "algorithm": {
            "importance_weight": {"cap": 3.0},
            "kl": {"place": "reward", "coefficient": 0.1},
        }
    }


def test_a_recipe_of_today_is_as_it_was() -> None:
    recipe = Recipe.model_validate(MINIMAL).model_dump()
    assert as_now(recipe) is recipe
