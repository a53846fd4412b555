"""Simulated runs against times that can be worked out by hand."""

from dataclasses import replace
from typing import Any

import pytest

from asyncrl.readers.planning.settings import Costs, Lengths, PlannedRun, log_normal_lengths
from asyncrl.readers.planning.simulation import Simulation, simulate
from asyncrl.replay.settings import QueueSettings

COSTS = Costs(
    decode_seconds=0.01,
    decode_seconds_per_request=0.001,
    train_seconds=1.0,
    train_seconds_per_token=0.001,
    publish_seconds=0.5,
    install_seconds=0.2,
)
QUICK = replace(COSTS, train_seconds=0.1, train_seconds_per_token=0.0)
"""A trainer that always waits."""
ALIKE = Lengths([[100] * 5], prompt_tokens=10.0)
LONG_TAIL = log_normal_lengths(100.0, 1.0, limit=1000, samples_per_group=5, prompt_tokens=10.0)


def planned(
    *, groups: int = 4, samples: int = 5, staleness: int = 0, steps: int = 12, **changes: Any
) -> PlannedRun:
    queue = QueueSettings(
        groups_per_batch=groups, samples_per_group=samples, max_staleness=staleness, num_steps=steps
    )
    run = PlannedRun(queue, COSTS, num_servers=1, max_running_requests=64, decode_slots=64.0)
    return replace(run, **changes)


# 100 tokens at 10 + 20 x 1 ms
GENERATION = 100 * 0.03
# 1 s, and 1 ms for each of 4 x 10 prompt tokens and 20 x 99 response tokens that are inputs
TRAINING = 1.0 + 0.001 * (4 * 10 + 20 * 99)


def test_a_synchronous_step_is_the_sum_of_its_parts() -> None:
    outcome = simulate(planned(), ALIKE)
    step = GENERATION + TRAINING + 0.5
    assert outcome.step_seconds() == pytest.approx(step)
    assert outcome.trainer_idle() == pytest.approx(GENERATION / step)
    assert outcome.rollout_idle() == pytest.approx(1 - GENERATION / step)
    assert outcome.requests_per_server() == pytest.approx(20 * GENERATION / step)
    assert (outcome.staleness_mean(), outcome.staleness_max()) == (0.0, 0)
    assert outcome.tokens_per_second() == pytest.approx(2000 / step)


def test_a_slow_trainer_never_waits_and_its_batches_are_as_stale_as_allowed() -> None:
    costs = replace(COSTS, train_seconds=50.0)
    outcome = simulate(planned(staleness=2, costs=costs), ALIKE)
    assert outcome.step_seconds() == pytest.approx(50.0 + TRAINING - 1.0 + 0.5)
    assert outcome.trainer_idle() == 0.0
    assert (outcome.staleness_mean(), outcome.staleness_max()) == (pytest.approx(2.0), 2)


def test_slow_servers_set_the_pace_but_for_the_time_that_they_are_paused() -> None:
    # 40 requests at once, 12 batches of 20: every token of each costs 50 ms.
    outcome = simulate(planned(staleness=5, steps=40, max_running_requests=40, costs=QUICK), ALIKE)
    # Two batches take 100 x 50 ms, and every step pauses them once for 0.2 s.
    assert outcome.step_seconds() == pytest.approx(2.5 + 0.2, rel=0.05)
    assert outcome.rollout_idle() == 0.0
    assert outcome.requests_per_server() == pytest.approx(40.0, rel=0.01)


def test_a_response_that_outlives_the_bound_holds_the_next_batches_up() -> None:
    # One response in twenty is ten times as long: with no staleness each batch waits for it.
    lengths = Lengths([[100] * 5, [100] * 5, [100] * 5, [100, 100, 100, 100, 1000]], 0.0)
    steps = {bound: simulate(planned(staleness=bound, steps=60), lengths).step_seconds() for bound in (0, 4)}
    # Alone, its last 900 tokens take 11 ms each.
    assert steps[0] > 8.0
    assert steps[4] < 0.6 * steps[0]


def test_draining_waits_for_everything_in_flight() -> None:
    outcome = simulate(planned(staleness=1, steps=20, interrupt="drain", costs=QUICK), ALIKE)
    # The next batch is begun at the take; the trainer is done after 0.1 s, its weights written after 0.3 s.
    assert outcome.step_seconds() == pytest.approx(GENERATION + 0.2)
    assert outcome.trainer_idle() == pytest.approx((GENERATION - 0.4) / (GENERATION + 0.2))
    assert outcome.staleness_mean() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("changes", "generation"),
    [
        # Nothing decodes while a server computes prompts.
        ({"costs": replace(COSTS, prefill_group_seconds=0.1)}, 4 * 0.1 + GENERATION),
        # 20 requests, of which the cache holds 10: each gets half of the tokens of a step of 10.
        ({"decode_slots": 10.0}, 100 * 0.02 * 2),
        # Groups begin at 0, 5, 10 and 15 s; each decodes alone, 100 tokens of 15 ms.
        ({"costs": replace(COSTS, admit_seconds=5.0)}, 15.0 + 1.5),
    ],
)
def test_prompts_small_caches_and_slow_admission_prolong_a_generation(
    changes: dict[str, Any], generation: float
) -> None:
    outcome = simulate(planned(**changes), ALIKE)
    assert outcome.step_seconds() == pytest.approx(generation + TRAINING + 0.5)


def test_recomputed_keys_and_values_prolong_the_pause() -> None:
    costs = replace(QUICK, prefill_seconds_per_token=1e-4)
    step = {
        interrupt: simulate(planned(staleness=3, steps=30, costs=costs, interrupt=interrupt), ALIKE)
        for interrupt in ("continue", "retract")
    }
    assert step["retract"].step_seconds() > step["continue"].step_seconds()


def test_servers_share_the_load() -> None:
    # Two groups of five on each.
    two = simulate(planned(num_servers=2), ALIKE)
    assert two.step_seconds() == pytest.approx(100 * 0.02 + TRAINING + 0.5)
    # Of a hundred servers four have a group each.
    many = simulate(planned(num_servers=100), ALIKE)
    assert many.step_seconds() == pytest.approx(100 * 0.015 + TRAINING + 0.5)
    assert many.rollout_idle() == pytest.approx(1.0 - 0.04 * 1.5 / many.step_seconds())


def test_oversampling_parks_stragglers_and_bounds_what_is_in_flight() -> None:
    free, rounds = (
        simulate(planned(staleness=4, steps=40, oversampling=factor), LONG_TAIL) for factor in (None, 1.5)
    )
    assert rounds.requests_per_server() < free.requests_per_server()
    assert rounds.staleness_mean() < free.staleness_mean()


def test_every_generated_token_is_trained_or_queued() -> None:
    run = planned(staleness=3, steps=30, num_servers=3)
    simulation = Simulation(run, LONG_TAIL)
    outcome = simulation.finish()
    left = sum(group.num_tokens() for group in simulation.live.values())
    trained = sum(step.tokens_trained for step in outcome.steps)
    assert len(outcome.steps) == 30
    assert simulation.num_generated == pytest.approx(trained + left)


def test_a_part_of_servers_and_groups_tells_the_same() -> None:
    run = planned(groups=64, staleness=3, steps=30, num_servers=16)
    whole, part = simulate(run, LONG_TAIL), simulate(run.scaled_to(80)[0], LONG_TAIL)
    assert run.scaled_to(80)[0].num_servers == 4 and run.scaled_to(80)[1] == 0.25
    assert part.step_seconds() == pytest.approx(whole.step_seconds(), rel=0.1)
    assert part.staleness_mean() == pytest.approx(whole.staleness_mean(), abs=0.3)
