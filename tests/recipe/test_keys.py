"""Every key explains itself."""

import pytest
from pydantic import BaseModel

from asyncrl.errors import InputError
from asyncrl.recipe import Recipe
from asyncrl.recipe.complaint import dotted_keys, nearest_key
from asyncrl.recipe.file import parse_recipe
from asyncrl.recipe.keys import markdown, names
from asyncrl.recipe.terms import Term, kinds_in, names_of, numbers_of


def dotted_names(section: type[BaseModel], prefix: str = "") -> list[str]:
    """The dotted names of all keys, from the classes."""
    found = []
    for name, field in section.model_fields.items():
        kinds = [field.annotation, *getattr(field.annotation, "__args__", ())]
        kinds = [getattr(kind, "__origin__", kind) for kind in kinds]
        inner = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if terms := kinds_in(field.annotation):
            found += [prefix + name, *_numbers(prefix + name, terms, is_list=kinds[0] is list)]
        else:
            found += dotted_names(inner[0], f"{prefix}{name}.") if inner else [prefix + name]
    return found


def _numbers(key: str, terms: tuple[type[Term], ...], *, is_list: bool) -> list[str]:
    """The dotted names of the numbers of terms; in a list below the term's name."""
    places = [(f"{key}.{names_of(kind)[0]}" if is_list and names_of(kind) else key, kind) for kind in terms]
    return [*dict.fromkeys(f"{place}.{number}" for place, kind in places for number in numbers_of(kind))]


def test_every_key_is_explained_with_its_kind_and_default() -> None:
    for name in dotted_names(Recipe):
        # What follows are the keys of a mapping that the key may hold.
        first, *text = markdown(name).partition("\n- `")[0].splitlines()
        assert first.startswith(f"- `{name}` (") and first.endswith(":"), first
        assert any(f"; {state}" in first for state in ("required", "optional", "default ")), first
        assert text and all(line.startswith("  ") for line in text), name


def test_kind_range_and_default_are_those_of_the_field() -> None:
    assert markdown("rollout.max_staleness").startswith(
        "- `rollout.max_staleness` (integer >= 0; default 2):"
    )
    assert markdown("model.path").startswith("- `model.path` (string; required):")
    assert markdown("data.train").startswith(
        "- `data.train` (string or mapping or list of string or mapping; required):"
    )
    assert markdown("evaluation.stop_at_accuracy").startswith(
        "- `evaluation.stop_at_accuracy` (number >= 0 and <= 1; optional; may change on resume):"
    )
    assert markdown("critic.value_clip").startswith(
        "- `critic.value_clip` (number > 0 or null; default 0.5):"
    )
    assert markdown("serving.servers").startswith(
        "- `serving.servers` (list of string; default []; may change"
    )


def test_a_list_of_names_or_mappings_says_so() -> None:
    assert markdown("turns.tools").startswith("- `turns.tools` (list of mapping; default []):")


def test_a_key_says_whether_a_resumed_run_may_change_it() -> None:
    changeable = {name for name in dotted_names(Recipe) if "; may change on resume):" in markdown(name)}
    assert changeable >= {"trainer.num_steps", "trainer.parallel.tensor", "alarms.cut_share", "run_folder"}
    assert not changeable & {"seed", "trainer.adam_beta1", "rollout.max_staleness", "data.train"}


def test_each_choice_has_a_line() -> None:
    _, _, *choices = markdown("rollout.interrupt").splitlines()
    assert [line.split(":")[0] for line in choices] == [
        "  - continue",
        "  - retract",
        "  - abort",
        "  - drain",
    ]


def test_a_key_that_may_hold_a_mapping_lists_its_keys() -> None:
    assert "- `data.train.weight` (number > 0; optional):" in markdown("data.train")
    assert markdown("data.train.columns.prompt").startswith(
        "- `data.train.columns.prompt` (string; optional):"
    )


def test_a_section_lists_all_its_keys() -> None:
    text = markdown("trainer")
    assert text.startswith("## trainer\n") and "## trainer.parallel\n" in text
    listed = [line.split("`")[1] for line in text.splitlines() if line.startswith("- `")]
    assert sorted(listed) == sorted(name for name in dotted_names(Recipe) if name.startswith("trainer."))


def test_an_unknown_key_is_refused_with_the_nearest_one() -> None:
    said = r"A recipe has no key rollout\.interupt\. Did you mean rollout\.interrupt\?"
    with pytest.raises(InputError, match=said):
        markdown("rollout.interupt")


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
