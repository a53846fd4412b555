"""Offers where a recipe does not fit: changes that fit, the smallest first, each a legal recipe."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from fakes.recipes import make_recipe
from fakes.shapes import seven_b_shape, tiny_shape

from asyncrl.errors import InputError
from asyncrl.launch.first_recipe.commented import plain
from asyncrl.launch.meters.fits import Fit, find_fits, fit_gpus
from asyncrl.launch.meters.memory import trainer_memory
from asyncrl.model.layout import check_layout
from asyncrl.model.shape import ModelShape
from asyncrl.recipe import Recipe

ROOM = 72e9
"""90% of a GPU of 80 GB."""
MOE = dataclasses.replace(
    tiny_shape(),
    architecture="Qwen3MoeForCausalLM",
    num_layers=48,
    hidden_size=2048,
    num_heads=32,
    num_kv_heads=4,
    head_size=128,
    ffn_size=6144,
    vocab_size=151_936,
    max_positions=40_960,
    num_experts=128,
    experts_per_token=8,
    expert_ffn_size=768,
)
"""Qwen3-30B-A3B."""


def recipe_of(**sections: Any) -> Recipe:
    rollout = {"max_new_tokens": 14_336}
    model = {"dtype": "bfloat16", "context_tokens": 16_384, **sections.pop("model", {})}
    return make_recipe(Path("m"), rollout=rollout, model=model, **sections)


def merged(base: dict[str, Any], on_top: dict[str, Any]) -> dict[str, Any]:
    both = {**base, **on_top}
    for key in base.keys() & on_top.keys():
        if isinstance(base[key], dict) and isinstance(on_top[key], dict):
            both[key] = merged(base[key], on_top[key])
    return both


class Reader:
    """Reads the recipe with settings on top, as the command does, and remembers what was asked."""

    def __init__(self, **sections: Any) -> None:
        self.sections = sections

    def __call__(self, settings: Any) -> Recipe:
        return recipe_of(**merged(self.sections, plain((key, value, "") for key, value in settings.items())))


def offers(shape: ModelShape, **sections: Any) -> tuple[dict[str, Fit], Reader]:
    read = Reader(**sections)
    fits = find_fits(recipe_of(**sections), shape, read, room=ROOM)
    return {fit.what: fit for fit in fits}, read


EIGHT = {"num_processes": 8, "parallel": {"expert": 8}, "recompute": "full"}


def test_experts_that_one_set_of_ranks_holds_are_offered_what_their_states_need() -> None:
    found, read = offers(MOE, trainer=EIGHT, serving={"num_servers": 1, "tensor_parallel_size": 2})
    # 18 bytes for each of 3.6 billion parameters of experts, which no other rank shares.
    needed = trainer_memory(recipe_of(trainer=EIGHT), MOE, on_gpu=True).computing("full")
    assert needed > ROOM and "other parallel sizes" not in found
    assert found["Adam on the host"].settings == {"trainer.optimizer_cpu_offload": True}
    assert found["Adam on the host"].num_gpus == 10 and found["Adam on the host"].host_bytes > 100e9
    assert found["adapters"].settings == {"model.lora": {"rank": 32}}
    more = found["more GPUs"]
    assert (more.num_gpus, more.settings) == (18, {"trainer.num_processes": 16})
    # Two ranks share what an expert's Adam needs: 12 bytes become 6.
    assert needed - more.rank_bytes == pytest.approx(6 * (29.0e9 / 8 + 1.54e9 / 8), rel=0.02)


def test_each_offer_fits_by_the_plans_own_count_and_is_a_recipe() -> None:
    found, read = offers(MOE, trainer=EIGHT, serving={"num_servers": 1, "tensor_parallel_size": 2})
    for fit in found.values():
        recipe = read(fit.settings)
        memory = trainer_memory(recipe, MOE, on_gpu=True)
        assert memory.computing(recipe.trainer.recompute) <= fit.rank_bytes <= ROOM
        check_layout(recipe, MOE, on_gpu=True)


def test_one_size_is_changed_where_one_is_enough_and_the_smallest_that_is() -> None:
    # Each of four ranks holds 6 + 12 / 4 bytes of 7.6 billion parameters, and its activations.
    found, _ = offers(seven_b_shape(), trainer={"num_processes": 4, "recompute": "full"})
    fit = found["other parallel sizes"]
    assert fit.settings == {"trainer.parallel.tensor": 2, "trainer.parallel.sequence_parallel": True}
    assert fit.num_gpus == 5


def test_a_recipe_that_takes_turns_is_offered_a_cache_that_leaves_the_trainer_its_state() -> None:
    found, read = offers(seven_b_shape(), trainer={"num_processes": 3, "recompute": "full"})
    fit = found["trainer and servers in turns"]
    assert fit.settings["placement.colocated"] is True and fit.num_gpus == 4
    assert fit.settings["serving.max_total_tokens"] % 1024 == 0
    assert read(fit.settings).placement.colocated


def test_a_size_that_no_layout_divides_is_not_offered() -> None:
    # 28 query heads and 4 key-value heads, 28 layers: neither 8 tensor ranks nor 8 stages.
    search = fit_gpus(recipe_of(), seven_b_shape(), Reader(), num_gpus=8, room=ROOM)
    assert search is not None
    for key, sizes in (
        ("trainer.parallel.tensor", (1, 2, 4)),
        ("trainer.parallel.pipeline", (1, 2, 4, 7, 14)),
    ):
        assert search.settings.get(key, 1) in sizes


def test_nothing_is_offered_where_one_sequence_alone_is_too_large() -> None:
    assert find_fits(recipe_of(), seven_b_shape(), Reader(), room=5e9) == []
    assert fit_gpus(recipe_of(), seven_b_shape(), Reader(), num_gpus=8, room=5e9) is None


def test_what_the_recipe_itself_refuses_is_not_offered() -> None:
    def refuse(settings: Any) -> Recipe:
        if "trainer.optimizer_cpu_offload" in settings:
            raise InputError("no")
        return Reader(trainer=EIGHT)(settings)

    serving = {"num_servers": 1, "tensor_parallel_size": 2}
    fits = find_fits(recipe_of(trainer=EIGHT, serving=serving), MOE, refuse, room=ROOM)
    assert "Adam on the host" not in {fit.what for fit in fits}


def test_the_knobs_can_be_put_behind_a_command() -> None:
    fit = Fit("adapters", {"model.lora": {"rank": 32}, "placement.colocated": True}, 8, 0, 0, 0)
    assert fit.words() == "model.lora='{rank: 32}' placement.colocated=true"
