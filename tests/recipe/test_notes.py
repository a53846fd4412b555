"""Notes of `check` on recipes that are valid and do less, or more, than they seem to."""

import inspect
import re
from pathlib import Path

import pytest
from fakes.recipes import make_recipe

from asyncrl.recipe import Alarms
from asyncrl.recipe import notes as notes_module
from asyncrl.recipe.file import load_recipe
from asyncrl.recipe.notes import notes

RECIPES = Path(__file__).parents[2] / "recipes"
TWO_STEPS = {"optimizer_steps_per_batch": 2}


@pytest.mark.parametrize("surrogate", ["ppo_clip", "gspo", "cispo", "gmpo"])
def test_a_clip_that_cannot_bind_is_said(surrogate: str) -> None:
    (note,) = notes(make_recipe(Path("m"), algorithm={"surrogate": surrogate}))
    assert "every policy ratio is 1" in note and "trainer.optimizer_steps_per_batch" in note
    assert notes(make_recipe(Path("m"), algorithm={"surrogate": surrogate}, trainer=TWO_STEPS)) == []
    around = {"surrogate": surrogate, "clip_around": "behavior", "importance_weight": "none"}
    assert notes(make_recipe(Path("m"), algorithm=around)) == []
    interpolated = {"surrogate": surrogate, "proximal": "interpolated"}
    assert notes(make_recipe(Path("m"), algorithm=interpolated)) == []


def test_nothing_is_said_of_a_surrogate_without_a_clip() -> None:
    assert notes(make_recipe(Path("m"), algorithm={"surrogate": "reinforce"})) == []


def test_a_recipe_that_sets_a_clip_has_one_that_binds() -> None:
    with_clip = [path for path in RECIPES.glob("*.yaml") if "clip_high" in path.read_text(encoding="utf-8")]
    assert with_clip
    for path in with_clip:
        assert not any("every policy ratio is 1" in note for note in notes(load_recipe(path))), path.name


def test_what_abort_staleness_does_to_lengths_is_said() -> None:
    rollout = {"max_staleness": 4, "abort_staleness": 2}
    (note,) = notes(make_recipe(Path("m"), rollout=rollout, trainer=TWO_STEPS))
    assert "abort_staleness 2 drops the groups that take longest" in note and "length_bias" in note


def test_what_mask_staleness_leaves_is_said() -> None:
    rollout = {"max_staleness": 4, "mask_staleness": 2}
    (note,) = notes(make_recipe(Path("m"), rollout=rollout, trainer=TWO_STEPS))
    assert "steps may lose most of their tokens or all" in note
    assert "Lower rollout.max_staleness to 3" in note and "no longer have mean 0" in note


def test_when_nothing_is_repeated_is_said() -> None:
    recipe = make_recipe(Path("m"), replay={"repeated_groups_per_batch": 4}, trainer=TWO_STEPS)
    (note,) = notes(recipe)
    assert "at most 2 versions old (rollout.max_staleness)" in note and "rollout.oversampling" in note


def test_that_k1_in_the_loss_pulls_nowhere_is_said() -> None:
    algorithm = {"kl": {"coefficient": 0.1, "estimator": "k1"}}
    (note,) = notes(make_recipe(Path("m"), algorithm=algorithm, trainer=TWO_STEPS))
    assert "mean of its gradient" in note and "algorithm.kl.place to reward" in note
    assert (
        notes(
            make_recipe(
                Path("m"),
                algorithm={"kl": {"coefficient": 0.1, "estimator": "k1", "place": "reward"}},
                trainer=TWO_STEPS,
            )
        )
        == []
    )


def test_that_a_cut_off_response_has_ended_for_the_critic_is_said() -> None:
    (note,) = notes(make_recipe(Path("m"), algorithm={"advantage": "gae"}, trainer=TWO_STEPS))
    assert "cut off at rollout.max_new_tokens (64) counts as ended for the critic" in note


@pytest.mark.parametrize(
    ("staleness", "section", "said"),
    [
        (
            4,
            {"turns": {"tools": ["calculator"], "max_turns": 3}},
            "may take 30 s of a trajectory (turns.max_turns times",
        ),
        (
            4,
            {"turns": {"tools": ["calculator"], "max_turns": 3}},
            "steps shorter than 7.5 s then wait for it",
        ),
        (1, {"turns": {"tools": ["calculator"], "max_turns": 99}}, "may take 120 s of a trajectory"),
        (
            0,
            {"agent": {"command": ["python"], "timeout_seconds": 60}},
            "An agent may take 60 s of a trajectory",
        ),
        (0, {"agent": {"command": ["python"], "timeout_seconds": 60}}, "every step waits for it"),
    ],
)
def test_how_long_steps_may_wait_for_a_tool_or_an_agent_is_said(
    staleness: int, section: dict, said: str
) -> None:
    rollout = {"max_staleness": staleness}
    (note,) = notes(make_recipe(Path("m"), rollout=rollout, trainer=TWO_STEPS, **section))
    assert said in note and f"rollout.max_staleness {staleness}" in note


def test_alarms_that_notes_name_exist() -> None:
    named = set(re.findall(r"alarms\.(\w+)", inspect.getsource(notes_module)))
    assert named and named <= Alarms.model_fields.keys()
