"""Numbers that a section cannot work with are refused with their key and value."""

import math
import re
from pathlib import Path
from typing import Annotated, Any

import pytest
from fakes.recipes import make_recipe

from asyncrl.errors import InputError
from asyncrl.recipe import Recipe, Rollout, Source
from asyncrl.recipe.sections.section import (
    BENCHMARK,
    CHANGEABLE,
    GYM_ROWS,
    LAYOUT,
    OBJECT,
    PATH,
    PATH_OR_HUB_ID,
    PER_STEP,
    TASK_ROWS,
    Marker,
    changed_texts,
    is_marked,
    marked,
    value_at,
)
from asyncrl.run.folder import first_difference


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("rollout.samples_per_group", 0, "is 0"),
        ("trainer.learning_rate", -1, "is -1"),
        ("trainer.learning_rate", math.inf, "is inf"),
        ("trainer.learning_rate", math.nan, "is nan"),
        ("trainer.learning_rate", 1e6, r"is 1000000\.0: .*less than or equal to 1"),
        ("critic.learning_rate", math.inf, "is inf"),
        ("rollout.temperature", math.inf, "is inf"),
        ("rollout.oversampling", math.inf, "is inf"),
        ("algorithm.kl.coefficient", math.inf, "is inf"),
        ("algorithm.entropy_bonus.coefficient", math.inf, "is inf"),
        ("algorithm.overlong.penalty", math.inf, "is inf"),
        ("algorithm.surrogate.dual_clip", math.inf, "is inf"),
        ("algorithm.rejection", [{"name": "token_veto", "low": math.inf}], r"\.0\.low is inf"),
    ],
)
def test_a_number_out_of_range_is_named(key: str, value: Any, said: str) -> None:
    section, *names = key.split(".")
    for name in reversed(names):
        value = {name: value}
    with pytest.raises(InputError, match=rf"{re.escape(key)} ?{said}"):
        make_recipe(Path("m"), **{section: value})


@pytest.mark.parametrize(
    ("marker", "having", "lacking"),
    [
        (CHANGEABLE, {"trainer.num_steps", "trainer.parallel", "serving", "trackers"}, {"seed", "model"}),
        (PER_STEP, {"trainer.learning_rate", "critic.learning_rate"}, {"trainer.schedule_unit"}),
        (LAYOUT, {"trainer.num_processes", "trainer.parallel"}, {"trainer.recompute", "trainer.num_steps"}),
        (TASK_ROWS, {"prompt", "verifying.options", "data.broken_rows"}, {"data.is_shuffled"}),
        (PATH, {"run_folder", "prepare.folder", "verifying.folder"}, {"model.path", "name"}),
        (PATH_OR_HUB_ID, {"model.path", "data.train", "data.heldout"}, {"model.revision"}),
        (OBJECT, {"prepare.target", "verifying.default", "algorithm.rejection"}, {"algorithm.reduction"}),
        (BENCHMARK, {"evaluation.benchmarks"}, {"evaluation.num_tasks"}),
    ],
    ids=lambda given: given.meaning[:20] if isinstance(given, Marker) else "",
)
def test_the_keys_that_have_a_marker_are_read_from_the_sections(
    marker: Marker, having: set[str], lacking: set[str]
) -> None:
    keys = marked(Recipe, marker)
    assert having <= set(keys) and not lacking & set(keys)
    recipe = Recipe.model_validate(
        {"name": "t", "model": {"path": "m"}, "data": {"train": "d"}, "evaluation": {"every_steps": 0}}
        | {"prepare": {"target": "m:f", "folder": "made"}}
    )
    for key in keys:
        value_at(recipe, key)


def test_the_keys_of_a_gym_are_read_from_the_source() -> None:
    assert marked(Source, GYM_ROWS) == ("gym", "config", "seed", "size")


def test_a_marker_of_a_section_is_one_of_its_keys() -> None:
    assert is_marked(Recipe, "serving.num_servers", CHANGEABLE)
    assert is_marked(Recipe, "trainer.parallel.tensor", LAYOUT)
    assert not is_marked(Recipe, "trainer", CHANGEABLE)
    assert not is_marked(Recipe, "", CHANGEABLE)


class Resumable(Rollout):
    new_key: Annotated[int, CHANGEABLE] = 1
    """A key that a resumed run may change."""
    later_key: Annotated[int, PER_STEP] = 1
    """One that changes later steps."""
    fixed_key: int = 1
    """One that it may not."""


class WithNewKeys(Recipe):
    rollout: Resumable = Resumable()


def test_a_new_key_may_change_on_resume_by_its_marker_alone() -> None:
    def recipe(**keys: int) -> Recipe:
        raw = {"name": "t", "model": {"path": "m"}, "data": {"train": "d", "heldout": "h"}}
        return WithNewKeys.model_validate({**raw, "rollout": keys})

    assert first_difference(recipe(), recipe(new_key=2)) is None
    assert first_difference(recipe(), recipe(later_key=2)) is None
    assert first_difference(recipe(), recipe(fixed_key=2)) == ("rollout.fixed_key", 1, 2)


def test_the_texts_of_marked_keys_are_changed_at_any_depth_and_no_others() -> None:
    raw: dict[str, Any] = {
        "name": "n",
        "run_folder": "r",
        "model": {"path": "m", "revision": "v"},
        "data": {
            "train": ["a", {"path": "b", "split": "s", "columns": "c"}],
            "heldout": {"gym": "g", "columns": {"prompt": "p", "answer": "q"}},
        },
        "verifying": {"default": "d", "options": {"parts": ["o"], "limit": 3}},
        "algorithm": {"rejection": ["t"], "reduction": "token_mean"},
        "trackers": ["k", {"name": "l", "options": {"x": "y"}, "project": "z"}],
        "evaluation": {"benchmarks": ["e"]},
        "trainer": "wrong",
        "unknown": "u",
    }
    changed_texts(Recipe, raw, lambda marker, text: f"{text}!")
    assert raw == {
        "name": "n",
        "run_folder": "r!",
        "model": {"path": "m!", "revision": "v"},
        "data": {
            "train": ["a!", {"path": "b!", "split": "s", "columns": "c!"}],
            "heldout": {"gym": "g", "columns": {"prompt": "p", "answer": "q"}},
        },
        "verifying": {"default": "d!", "options": {"parts": ["o!"], "limit": 3}},
        "algorithm": {"rejection": ["t!"], "reduction": "token_mean"},
        "trackers": ["k!", {"name": "l!", "options": {"x": "y!"}, "project": "z"}],
        "evaluation": {"benchmarks": ["e!"]},
        "trainer": "wrong",
        "unknown": "u",
    }


def test_the_order_of_the_staleness_experiment_is_not_offered() -> None:
    said = r"replay\.order is 'stalest': input should be 'admission', 'strict_admission', 'freshness' or"
    with pytest.raises(InputError, match=said):
        make_recipe(Path("m"), replay={"order": "stalest"})
