"""Adaptive groups in a plan: times worked out by hand, and the stated distribution of pass rates."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from fakes.newcomer import write_project
from readers.planning.test_simulation import ALIKE, COSTS

from asyncrl.errors import InputError
from asyncrl.readers.planning.settings import PlannedPilots, PlannedRun, plan_pilots
from asyncrl.readers.planning.simulation import Simulation, simulate
from asyncrl.recipe import Recipe
from asyncrl.recipe.file import load_recipe
from asyncrl.replay.settings import QueueSettings

EVERY_RATE = [(i + 0.5) / 500 for i in range(500)]


def planned(
    pilots: PlannedPilots | None, *, steps: int = 12, groups: int = 4, staleness: int = 0
) -> PlannedRun:
    """Groups of 5 with pilots of 2; every response has 100 tokens."""
    queue = QueueSettings(
        groups_per_batch=groups,
        samples_per_group=5,
        pilot_samples=None if pilots is None else 2,
        max_staleness=staleness,
        num_steps=steps,
    )
    return PlannedRun(queue, COSTS, 1, max_running_requests=64, decode_slots=64.0, pilots=pilots)


@pytest.mark.parametrize(
    ("min_chance", "num_responses", "generation"),
    [
        # All stop: 8 requests at once.
        (1.0, 2, 100 * 0.018),
        # All are extended: two rounds.
        (0.0, 5, 100 * 0.018 + 100 * 0.022),
    ],
)
def test_pilots_that_stop_are_whole_groups_and_extended_ones_take_two_rounds(
    min_chance: float, num_responses: int, generation: float
) -> None:
    outcome = simulate(planned(PlannedPilots([1.0], 2, 5, min_chance=min_chance)), ALIKE)
    # Prompts, and 99 response tokens of each that are inputs.
    training = 1.0 + 0.001 * (4 * 10 + 4 * num_responses * 99)
    assert outcome.responses_per_group() == num_responses
    assert outcome.step_seconds() == pytest.approx(generation + training + 0.5)


def test_a_pilot_of_two_is_mixed_with_one_chance_in_three_where_all_rates_are_equally_likely() -> None:
    outcome = simulate(planned(PlannedPilots(EVERY_RATE, 2, 5, min_chance=1.0), steps=100, groups=40), ALIKE)
    # 2 E[s (1 - s)] = 1 / 3, of 2880 groups.
    assert outcome.responses_per_group() == pytest.approx(2 + 3 / 3, abs=0.1)


def test_groups_without_a_signal_are_dropped_up_to_the_limit_and_replaced() -> None:
    pilots = PlannedPilots([1.0], 2, 5, min_chance=1.0, max_dropped_in_a_row=3)
    simulation = Simulation(planned(pilots), ALIKE)
    outcome = simulation.finish()
    assert len(outcome.steps) == 12
    # Each trained group has three before it that were dropped.
    trained = sum(step.tokens_trained for step in outcome.steps)
    assert simulation.num_generated == pytest.approx(4 * trained)


def test_every_token_of_a_run_with_pilots_is_trained_dropped_or_queued() -> None:
    pilots = PlannedPilots(EVERY_RATE, 2, 5, min_chance=0.5)
    simulation = Simulation(planned(pilots, staleness=2), ALIKE)
    outcome = simulation.finish()
    left = sum(group.num_tokens() for group in simulation.live.values())
    assert sum(step.tokens_trained for step in outcome.steps) + left == pytest.approx(
        simulation.num_generated
    )
    assert outcome.staleness_max() <= 2


@pytest.mark.parametrize(
    ("rewards", "min_chance", "is_extended"),
    # 3 more answers of the kind of 2, all rates equally likely: 3 / 6.
    [
        ([True, False], 1.0, True),
        ([True, True], 0.49, True),
        ([True, True], 0.51, False),
        ([False] * 2, 0.51, False),
    ],
)
def test_the_rule_is_that_of_the_run(rewards: list[bool], min_chance: float, is_extended: bool) -> None:
    assert PlannedPilots(EVERY_RATE, 2, 5, min_chance).extends(rewards) is is_extended


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    write_project(tmp_path)
    recipe = load_recipe(tmp_path / "recipe.yaml", ["rollout.samples_per_group=8", "rollout.pilot_samples=2"])
    assert recipe.rollout.pilot_samples == 2
    return recipe


def test_rates_are_equally_likely_or_those_of_a_file(recipe: Recipe, tmp_path: Path) -> None:
    assumed = plan_pilots(recipe, None)
    assert assumed is not None and (assumed.num_pilot, assumed.num_samples) == (2, 8)
    assert assumed.prior == pytest.approx((1.0, 1.0), rel=0.2)
    rows = [{"pass_rate": rate} for rate in [0.0] * 30 + [0.5] * 10 + [None]]
    (tmp_path / "rates.jsonl").write_text("\n".join(map(json.dumps, rows)))
    measured = plan_pilots(recipe, str(tmp_path / "rates.jsonl"))
    assert measured is not None and sorted(measured.rates) == [0.0] * 30 + [0.5] * 10
    a, b = measured.prior
    assert a / (a + b) == pytest.approx(0.125, abs=0.05)
    # Two wrong answers say less where most rows are hopeless: a pilot is stopped earlier.
    stopped = replace(measured, min_chance=0.5)
    assert not stopped.extends([False, False]) and replace(assumed, min_chance=0.5).extends([False, False])


def test_rates_that_cannot_be_used_are_refused(recipe: Recipe, tmp_path: Path) -> None:
    path = tmp_path / "rates.jsonl"
    for rows, sentence in (
        ([{"rate": 1}], 'no "pass_rate", which `asyncrl difficulty` writes'),
        ([{"pass_rate": 1.5}], '"pass_rate" is 1.5, expected a number from 0 to 1, or null'),
        ([{"pass_rate": 0.5}] * 3, "which has 3 rates, expected 16 or more"),
    ):
        path.write_text("\n".join(map(json.dumps, rows)))
        with pytest.raises(InputError, match=sentence):
            plan_pilots(recipe, str(path))
    whole = recipe.model_copy(update={"rollout": recipe.rollout.model_copy(update={"pilot_samples": None})})
    assert plan_pilots(whole, None) is None
    with pytest.raises(InputError, match=r"the recipe has no rollout\.pilot_samples"):
        plan_pilots(whole, str(path))
