"""The key that was meant by a name that is none."""

import pytest

from asyncrl.errors import InputError
from asyncrl.recipe import Recipe
from asyncrl.recipe.complaint import dotted_keys, nearest_key
from asyncrl.recipe.file import parse_recipe
from asyncrl.recipe.keys import markdown, names


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("num_steps", "trainer.num_steps"),
        ("steps", "trainer.num_steps"),
        ("max_new_tokens", "rollout.max_new_tokens"),
        ("Temperature", "rollout.temperature, evaluation.temperature"),
        ("lr", ""),
        ("frobnicate", ""),
    ],
)
def test_a_key_without_its_section_is_found(word: str, meant: str) -> None:
    found = nearest_key(word, Recipe.model_fields)
    assert found.startswith(f" Did you mean {meant}") if meant else found == ""


def test_a_key_is_found_by_its_own_name_alone() -> None:
    # The keys that the page lists; those of one mapping of a list are there as keys of it.
    known = {key for key, _ in dotted_keys(Recipe)}
    assert len(names() & known) > 250
    for key in sorted(names() & known)[::40]:
        assert "Did you mean" in nearest_key(key.rpartition(".")[2])


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        ({"num_steps": 2}, "unknown key num_steps. Did you mean trainer.num_steps?"),
        ({"trainer": {"steps": 2}}, "unknown key trainer.steps. Did you mean trainer.num_steps?"),
        ({"trainer": {"temperature": 2}}, "Did you mean rollout.temperature"),
        ({"trackers": ["tensorbord"]}, "Did you mean tensorboard?"),
        ({"model": {"path": "m", "dtype": "bfloat61"}}, "Did you mean bfloat16?"),
        ({"rollout": {"interrupt": "drian"}}, "Did you mean drain?"),
        ({"algorithm": {"advantage": "gpro"}}, "Did you mean grpo?"),
    ],
)
def test_a_refusal_names_the_nearest(raw: dict[str, object], sentence: str) -> None:
    good = {"name": "t", "model": {"path": "m"}, "data": {"train": "x"}, "evaluation": {"every_steps": 0}}
    with pytest.raises(InputError) as error:
        parse_recipe({**good, **raw}, source="recipe.yaml")
    assert sentence in str(error.value)


def test_the_page_of_keys_names_the_nearest() -> None:
    with pytest.raises(InputError, match=r"no key num_stpes\. Did you mean trainer\.num_steps\?"):
        markdown("num_stpes")
    with pytest.raises(InputError, match=r"no key rolout\.temperature\. Did you mean rollout\.temperature\?"):
        markdown("rolout.temperature")
