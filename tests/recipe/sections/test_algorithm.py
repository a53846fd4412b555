"""Terms: their names, their defaults, and which cannot work together."""

import math
from pathlib import Path
from typing import Any

import pytest
from fakes.recipes import make_recipe

from asyncrl.algorithms.surrogates import clip_range
from asyncrl.errors import InputError
from asyncrl.recipe import Algorithm
from asyncrl.recipe.sections.algorithm import TURN_ADVANTAGES


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
