"""Memory is planned for what a batch can hold, and the plan can be overridden."""

import psutil
import pytest
from fakes.shapes import tiny_shape

from asyncrl.errors import InputError
from asyncrl.launch.memory import largest_micro_batch, run_bytes
from asyncrl.launch.preflight import check_machine
from asyncrl.recipe import Recipe
from asyncrl.recipe.file import parse_recipe


def make_recipe(tokens: int, **others: object) -> Recipe:
    raw = {
        "name": "t",
        "model": {"path": "m", "context_tokens": 1000},
        "data": {"train": "d"},
        "evaluation": {"every_steps": 0},
        "rollout": {"groups_per_batch": 2, "samples_per_group": 4, "max_new_tokens": 100},
        "trainer": {"tokens_per_micro_batch": tokens},
        **others,
    }
    return parse_recipe(raw, source="test")


@pytest.mark.parametrize(
    ("budget", "longest_prompt", "planned"),
    [
        # 2 prompts of 50 tokens, 8 responses of 100: all of a batch, whatever the budget.
        (8192, 50, 900),
        (600, 50, 600),
        # One sequence is never divided: 50 + 100 tokens.
        (32, 50, 150),
        # Prompts that nobody knows: up to what the context of 1000 leaves.
        (8192, None, 2600),
        (32, None, 1000),
    ],
)
def test_a_micro_batch_is_no_larger_than_batch_and_sequences_allow(
    budget: int, longest_prompt: int | None, planned: int
) -> None:
    assert largest_micro_batch(make_recipe(budget), tiny_shape(), longest_prompt) == planned


def test_short_prompts_make_the_plan_smaller() -> None:
    recipe = make_recipe(8192)
    assert run_bytes(recipe, tiny_shape(), longest_prompt=50) < run_bytes(recipe, tiny_shape())


def test_a_run_that_needs_more_than_memory_gib_is_refused_and_one_that_may_have_it_is_not() -> None:
    said = r"GiB of memory, 0\.1 GiB are what memory_gib allows.*Set memory_gib where you know better"
    with pytest.raises(InputError, match=said):
        check_machine(make_recipe(600, memory_gib=0.1), tiny_shape(), has_gpu=False)
    # A key-value cache that this machine has no room for.
    total = psutil.virtual_memory().total
    serving = {"max_total_tokens": total // 64}
    assert run_bytes(make_recipe(600, serving=serving), tiny_shape()) > total
    with pytest.raises(InputError, match="are free"):
        check_machine(make_recipe(600, serving=serving), tiny_shape(), has_gpu=False)
    check_machine(make_recipe(600, serving=serving, memory_gib=1e6), tiny_shape(), has_gpu=False)
