"""Sizes of a recipe: what is asked of the check, what the model's shape bounds; and the YAML of it."""

from dataclasses import replace
from typing import Any

import pytest
from fakes.shapes import seven_b_shape

from asyncrl.errors import InputError
from asyncrl.launch.first_recipe.commented import plain, text, written
from asyncrl.launch.first_recipe.keys import Wish
from asyncrl.launch.first_recipe.rows import find_rows
from asyncrl.launch.first_recipe.sized import Sized, file_name, sized_recipe
from asyncrl.model.shape import ModelShape
from asyncrl.readers.planning.estimated import GPUS
from asyncrl.recipe import Recipe
from asyncrl.recipe.yaml_text import read_yaml

SHAPE = replace(seven_b_shape(), max_positions=32768)


def accept(recipe: Recipe, shape: ModelShape) -> None:
    pass


def size(num_gpus: int, *, shape: ModelShape = SHAPE, check: Any = accept, goal: str = "math") -> Sized:
    wish = Wish("/models/seven", num_gpus, GPUS["H100"], goal, True, "seven", "asyncrl init")
    return sized_recipe(wish, shape, find_rows("gsm8k"), check)


def test_the_context_holds_prompt_observations_and_response_and_no_more_than_the_model() -> None:
    recipe = size(8).recipe
    assert (recipe.model.context_tokens, recipe.rollout.max_new_tokens) == (1024 + 2048, 2048)
    recipe = size(8, goal="tools").recipe
    assert recipe.model.context_tokens == 1024 + recipe.longest_response() == 1024 + 7 * 512 + 2048
    recipe = size(8, shape=replace(SHAPE, max_positions=2048)).recipe
    assert (recipe.model.context_tokens, recipe.rollout.max_new_tokens) == (2048, 1024)


def test_a_model_without_room_for_a_response_is_refused() -> None:
    with pytest.raises(InputError, match="made for 1024 positions, which leaves no room"):
        size(8, shape=replace(SHAPE, max_positions=1024))


def test_activations_are_recomputed_only_where_they_do_not_fit() -> None:
    def recomputes(recipe: Recipe, shape: ModelShape) -> None:
        if recipe.trainer.recompute == "none":
            raise InputError("activations do not fit")

    assert size(8).recipe.trainer.recompute == "none"
    found = size(8, check=recomputes)
    assert (found.recipe.trainer.recompute, found.recipe.trainer.tokens_per_micro_batch) == ("full", 16384)
    assert "activations do not fit otherwise" in found.text


def test_many_servers_of_a_large_model_get_weights_from_memory() -> None:
    assert size(8).recipe.serving.weight_transport == "disk"
    recipe = size(64).recipe
    assert recipe.serving.num_servers * 15.2e9 > 100e9
    assert recipe.serving.weight_transport == "distributed"


def test_one_that_shares_its_gpus_says_how_large_its_cache_may_be() -> None:
    def only_shared(recipe: Recipe, shape: ModelShape) -> None:
        if not recipe.placement.colocated:
            raise InputError("not apart")

    recipe = size(8, check=only_shared).recipe
    assert recipe.serving.max_total_tokens is not None
    assert recipe.serving.max_total_tokens >= 8 * (1024 + 2048)
    assert size(8).recipe.serving.max_total_tokens is None


def test_a_model_that_fits_nowhere_is_said_to() -> None:
    def never(recipe: Recipe, shape: ModelShape) -> None:
        raise InputError("too large")

    huge = replace(SHAPE, num_layers=2000, hidden_size=32768, ffn_size=131072)
    with pytest.raises(InputError, match="does not fit on 8 GPU.* nor on 1024 of them"):
        size(8, shape=huge, check=never)


def test_names_are_of_letters_digits_and_underscores() -> None:
    assert file_name("Qwen/Qwen3-0.6B-Base") == "qwen3_0_6b_base"
    assert file_name("./models/") == "models" and file_name("...") == "run"


KEYS = [
    ("name", "run", ""),
    ("run_folder", "runs/{name}", "relative"),
    ("data.train", {"path": "a" * 90, "columns": {"prompt": "question", "answer": "y"}}, "rows"),
    ("rollout.temperature", 1.0, "as sampled"),
    ("rollout.stop", ["\n\nQ:", "no"], ""),
    ("rollout.learning_rate", 1e-6, "a comment that is too long to stand beside its key " * 3),
    ("trainer.parallel.tensor", 2, "shared"),
    ("trainer.parallel.pipeline", 1, ""),
    ("trainer.off", None, ""),
]


def test_the_text_is_read_back_as_the_data() -> None:
    assert read_yaml(text("A title\n\nof two paragraphs", KEYS)) == plain(KEYS)


def test_comments_stand_beside_their_key_or_above_it() -> None:
    lines = text("A title", KEYS).splitlines()
    assert lines[0] == "# A title"
    assert "  temperature: 1.0             # as sampled" in lines
    assert "    tensor: 2                  # shared" in lines
    before = lines.index("  learning_rate: 1e-06") - 1
    assert lines[before].startswith("  # ") and max(map(len, lines)) <= 118


def test_text_that_yaml_would_read_as_something_else_is_quoted() -> None:
    for value in ("yes", "null", "1e6", "a: b", "{x}", "a\nb", "#x", ""):
        assert written(value).startswith('"') and read_yaml(f"key: {written(value)}") == {"key": value}
