"""Where costs and lengths come from, and what is assumed with them."""

import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from fakes.recipes import make_recipe
from fakes.shapes import tiny_shape

from asyncrl.errors import InputError
from asyncrl.model.shape import ModelShape
from asyncrl.model.weights import num_parameters
from asyncrl.readers.planning.estimated import GPUS, assumed_lengths, estimate_costs
from asyncrl.readers.planning.report import best_splits, find_source, recommended
from asyncrl.readers.planning.settings import Costs, Lengths, PlannedRun, log_normal_lengths
from asyncrl.recipe import Recipe

H100 = GPUS["H100"]


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    return make_recipe(
        tmp_path, rollout={"max_new_tokens": 4000, "groups_per_batch": 4}, serving={"max_total_tokens": 10**6}
    )


def test_an_estimate_follows_the_data_sheet(recipe: Recipe) -> None:
    shape, lengths = tiny_shape(), assumed_lengths(recipe, prompt_tokens=256.0)
    costs = estimate_costs(shape, recipe, lengths, H100, num_ranks=1)
    # Weights of 2 bytes once per step, at 60% of 3.35 TB/s, and 4 ms.
    assert costs.decode_seconds == pytest.approx(0.004 + 2 * num_parameters(shape) / (0.6 * 3.35e12))
    # A slower device, half of the ranks: everything takes longer.
    slower = estimate_costs(shape, recipe, lengths, GPUS["A10"], num_ranks=1)
    assert slower.train_seconds_per_token == pytest.approx(costs.train_seconds_per_token * 989 / 125)
    two = estimate_costs(shape, recipe, lengths, H100, num_ranks=2)
    assert two.train_seconds_per_token == pytest.approx(costs.train_seconds_per_token / 2)
    # Gradients of two copies have to be summed.
    assert two.train_seconds > costs.train_seconds
    assert "estimated for H100" in costs.origin


def test_a_figure_is_the_measured_one_or_said_to_be_a_guess(recipe: Recipe) -> None:
    small = tiny_shape()
    large = replace(small, vocab_size=3 * 10**9 // small.hidden_size)

    def costs_of(shape: ModelShape, transport: str) -> Costs:
        serving = recipe.serving.model_copy(update={"weight_transport": transport})
        own = recipe.model_copy(update={"serving": serving})
        return estimate_costs(shape, own, assumed_lengths(recipe, prompt_tokens=256.0), H100, num_ranks=1)

    measured, guessed = costs_of(small, "disk"), costs_of(large, "distributed")
    assert (
        "training at 17% of the peak (16 to 18% were measured of Qwen3 0.6 B on one H200);" in measured.origin
    )
    assert "training at 35% of the peak (a guess); guesses: decoding at 60%" in guessed.origin
    # Half a second, and 2 bytes for each parameter at 2 or 20 GB/s.
    assert "and 2 GB/s to servers (disk)" in measured.origin
    assert measured.publish_seconds == pytest.approx(0.5 + 2 * num_parameters(small) / 2e9)
    assert "and 20 GB/s to servers (distributed)" in guessed.origin
    assert guessed.publish_seconds == pytest.approx(0.5 + 2 * num_parameters(large) / 20e9)


def test_assumed_lengths_have_the_mean_and_the_limit_of_the_recipe(recipe: Recipe) -> None:
    lengths = assumed_lengths(recipe, prompt_tokens=100.0)
    tokens = [number for group in lengths.groups for number in group]
    # A quarter of 4000, less what the limit cuts off.
    assert 900 < statistics.fmean(tokens) < 1000
    assert max(tokens) == 4000
    # E[length^2] / 2 E[length] is more than half of the mean, because long ones run for longer.
    assert lengths.tokens_held > 100 + statistics.fmean(tokens) / 2
    alike = log_normal_lengths(60.0, 0.0, limit=4000, samples_per_group=8, prompt_tokens=10.0)
    assert alike.tokens_held == 40.0


def test_an_unknown_device_is_refused_with_the_known_ones(recipe: Recipe) -> None:
    with pytest.raises(InputError, match="--device H9 is unknown. Known: B200, H200"):
        find_source(recipe, tiny_shape(), device="H9")


def test_a_run_is_estimated_for_a_likely_gpu_where_the_machine_has_none(recipe: Recipe) -> None:
    assumptions = find_source(recipe, tiny_shape(), is_elsewhere=True).assumptions
    assert "estimated for H100" in assumptions[0]
    assert "device: H100 (a likely GPU; --device names another)" in assumptions


def test_prompts_are_as_long_as_the_longest_one_where_that_is_known(recipe: Recipe) -> None:
    given = find_source(recipe, tiny_shape(), device="H100", longest_prompt=70)
    assert given.lengths.prompt_tokens == 70 and "prompts: 70 tokens (the longest one)" in given.assumptions
    assumed = find_source(recipe, tiny_shape(), device="H100")
    assert "prompts: 256 tokens (assumed; --longest-prompt says how many)" in assumed.assumptions


def test_the_best_split_balances_both_sides(recipe: Recipe) -> None:
    lengths = Lengths([[100] * 8], 0.0)
    source = find_source(recipe, tiny_shape(), device="H100")

    def costs_of(ranks: int) -> Costs:
        # A token takes 2e-4 s of a server, and as much of a rank as all servers of the other 6 GPUs take.
        return Costs(0.0, 2e-4, 0.0, 2 * 2e-4 / 6 / ranks, 0.0, 0.0)

    source = replace(source, lengths=lengths, costs_of=costs_of)
    splits = best_splits(source, source.run.with_queue(num_steps=24), num_gpus=8)
    best = recommended(splits)
    assert (best.num_servers, best.num_ranks) == (6, 2)
    assert [split.groups_per_batch for split in splits] == [4 * 2**i for i in range(len(splits))]


def test_a_split_needs_a_gpu_for_each_side(recipe: Recipe) -> None:
    source = find_source(recipe, tiny_shape(), device="H100")
    with pytest.raises(InputError, match="--gpus is 1, but one server takes 1"):
        best_splits(source, source.run, num_gpus=1)


def test_a_planned_run_has_the_rules_of_its_recipe(tmp_path: Path) -> None:
    recipe = make_recipe(
        tmp_path,
        rollout={"max_staleness": 3, "oversampling": 1.5, "interrupt": "abort"},
        serving={"num_servers": 2, "max_running_requests": 100, "max_total_tokens": 5000},
    )
    costs = find_source(recipe, tiny_shape(), device="H100").run.costs
    run = PlannedRun.of(recipe, costs, tokens_held=50.0)
    assert (run.queue.max_staleness, run.oversampling, run.interrupt) == (3, 1.5, "abort")
    assert (run.num_servers, run.max_running_requests, run.decode_slots) == (2, 100, 100.0)
