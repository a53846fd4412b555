"""Which divisions of GPUs are legal, which is chosen, and how few GPUs are enough."""

from dataclasses import replace

import pytest
from fakes.recipes import make_recipe
from fakes.shapes import seven_b_shape

from asyncrl.readers.planning.division import (
    Division,
    choose,
    divisions,
    fewest_gpus,
    grids,
    server_sizes,
    step_seconds,
)
from asyncrl.readers.planning.estimated import GPUS, assumed_lengths

SHAPE = seven_b_shape()
"""28 layers and heads, 4 key-value heads."""
EXPERTS = replace(SHAPE, num_experts=6, experts_per_token=2, expert_ffn_size=64)


def always(division: Division) -> bool:
    return True


def test_a_tensor_size_divides_heads_and_a_pipeline_layers() -> None:
    found = grids(SHAPE, 8)
    assert found[0] == (1, 1, 1), "data parallelism first"
    # 8 does not divide 4 key-value heads, nor 28 layers.
    assert {tensor for tensor, _, _ in found} == {1, 2, 4} == {pipeline for _, pipeline, _ in found}
    assert all(8 % (tensor * pipeline) == 0 for tensor, pipeline, _ in found)


def test_experts_are_dealt_among_ranks_of_a_stage_that_divide_them() -> None:
    assert [expert for tensor, pipeline, expert in grids(EXPERTS, 12) if (tensor, pipeline) == (1, 1)] == [
        6,
        3,
        2,
        1,
    ]
    assert {expert for _, _, expert in grids(SHAPE, 12)} == {1}


@pytest.mark.parametrize("num_gpus", [1, 2, 3, 8, 16])
def test_every_division_uses_all_gpus_and_shares_them_within_a_machine_alone(num_gpus: int) -> None:
    found = list(divisions(SHAPE, num_gpus))
    assert {division.num_gpus() for division in found} == {num_gpus}
    assert any(division.is_colocated for division in found) is (num_gpus <= 8)
    for division in found:
        assert division.num_ranks % (division.tensor * division.pipeline) == 0
        assert division.server_ranks in server_sizes(SHAPE)


def test_the_fastest_of_the_smallest_servers_that_fit_is_chosen() -> None:
    def fits(division: Division) -> bool:
        return division.server_ranks >= 2 and division.tensor >= 2

    found = choose(SHAPE, 8, fits, lambda division: abs(division.num_ranks - 4))
    assert found == Division(num_servers=2, server_ranks=2, num_ranks=4, tensor=2)


def test_gpus_are_shared_only_where_nothing_fits_apart() -> None:
    found = choose(SHAPE, 4, lambda division: division.num_ranks == 4, lambda division: 1.0)
    assert found is not None and found.is_colocated and found.num_ranks == 4
    assert choose(SHAPE, 4, lambda division: False, lambda division: 1.0) is None


def test_the_fewest_gpus_that_fit_are_found_and_whole_machines_beyond_one() -> None:
    found = fewest_gpus(SHAPE, lambda division: division.num_ranks >= 9, above=1, most=64)
    assert found is not None and found.num_gpus() == 24 and found.num_ranks == 16
    found = fewest_gpus(SHAPE, lambda division: division.num_ranks >= 3, above=1, most=64)
    assert found is not None and found.num_gpus() == 3 and found.is_colocated
    assert fewest_gpus(SHAPE, lambda division: False, above=1, most=16) is None


def test_its_settings_are_keys_of_a_recipe(tmp_path) -> None:
    division = Division(num_servers=2, server_ranks=2, num_ranks=4, tensor=2)
    raw: dict = {}
    for key, value in division.settings().items():
        place = raw
        *outer, last = key.split(".")
        for name in outer:
            place = place.setdefault(name, {})
        place[last] = value
    recipe = make_recipe(tmp_path, **raw)
    assert recipe.trainer.num_processes == 4 and recipe.trainer.parallel.sequence_parallel
    assert recipe.serving.num_servers == 2


def test_a_step_takes_the_longer_side_and_where_they_share_both(tmp_path) -> None:
    recipe = make_recipe(tmp_path, rollout={"max_new_tokens": 4000})
    lengths = assumed_lengths(recipe, prompt_tokens=256.0)

    def seconds(**changes) -> float:
        division = replace(Division(num_servers=1, server_ranks=1, num_ranks=1), **changes)
        return step_seconds(SHAPE, recipe, division, lengths, GPUS["H100"])

    apart = seconds()
    assert seconds(is_colocated=True) > apart
    assert seconds(num_servers=4, num_ranks=4) < apart
    assert seconds(num_servers=1000) == seconds(num_servers=10_000), "the trainer is what takes long"
