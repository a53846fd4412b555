"""What `asyncrl plan --simulate` predicts, against the real controller, queue and fleet on a driven clock.

The servers here decode at a known pace and responses have known lengths, so that a wrong model cannot hide
behind a noisy machine.
"""

import asyncio
import random
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
from simulation.plan import Plan, draw
from simulation.schedule import WorldNotebook, make_recipe, run_schedule
from simulation.server import Request, SimulatedServer
from simulation.world import STOP_TOKENS, World

from asyncrl.readers.planning.settings import Costs, Lengths, Outcome, PlannedRun, steady_range
from asyncrl.readers.planning.simulation import simulate

DECODE, PER_REQUEST = 0.02, 0.002
TRAINING = 2.0
INSTALL = 0.05
"""Of the weights alone; the rest are replies."""
LATENCY = 0.002
REPLY = 0.005 + LATENCY
NUM_STEPS = 24
rows: list[dict[str, Any]] = []


def length_of(group: int, sample: int) -> int:
    """Response tokens: 10 to 30, one in nine 70."""
    chance = random.Random(f"{group} {sample}")
    return 70 if chance.random() < 1 / 9 else chance.randint(10, 30)


# More than are admitted, in the order of admission.
LENGTHS = Lengths([[length_of(group, sample) for sample in range(4)] for group in range(1000)], 2.0)


class SteadyWorld(World):
    def delay(self, mean_seconds: float) -> float:
        return mean_seconds


class SteadyServer(SimulatedServer):
    """One token per request and round, in which all requests take part."""

    async def _decode(self) -> None:
        while True:
            await self._wait(
                lambda: not (self.is_paused or self.is_updating) and bool(self.running or self.waiting)
            )
            self.running.extend(self.waiting)
            self.waiting = []
            await asyncio.sleep(DECODE + PER_REQUEST * len(self.running))
            for request in list(self.running):
                self._advance(request)

    def _advance(self, request: Request) -> None:
        if not request.is_prefilled:
            self._prefill(request)
        kind = "abort" if request.is_aborted else self._sample(request)
        group, sample = map(int, request.trajectory().split("-"))
        if kind != "abort":
            done = len(request.prompt) - 2 + len(request.tokens)
            kind = "stop" if done == length_of(group, sample) else None
        self._send(request, kind)

    def _sample(self, request: Request) -> str | None:
        # Never a token that would end it: its length does.
        with mock.patch.object(self.world.rng, "random", lambda: 0.99):
            kind = super()._sample(request)
        if request.tokens[-1] in STOP_TOKENS:
            raise AssertionError("a response ended before its length")
        return kind


class Rows(WorldNotebook):
    def step(self, row: dict[str, Any]) -> None:
        rows.append(row)


def make_plan(**changes: Any) -> Plan:
    plan = replace(
        draw(1),
        num_servers=1,
        groups_per_batch=4,
        samples_per_group=4,
        max_staleness=2,
        order="admission",
        interrupt="continue",
        tokens_per_round=None,
        oversampling=None,
        abort_staleness=None,
        hedge_seconds=None,
        drops_no_signal=False,
        num_steps=NUM_STEPS,
        max_new_tokens=90,
        max_running_requests=64,
        commit_every=10 * NUM_STEPS,
        has_evaluation=False,
        token_seconds=DECODE,
        step_seconds=TRAINING,
        verify_seconds=0.0,
        fault_share=0.0,
        confirm_share=1.0,
        repeated_groups=0,
        server_faults=[],
        fleet_changes=[],
        trainer_crashes=[],
        controller_ends=[],
    )
    return replace(plan, **changes)


def run_for_real(plan: Plan) -> list[dict[str, Any]]:
    rows.clear()
    with (
        mock.patch("simulation.schedule.World", SteadyWorld),
        mock.patch("simulation.schedule.SimulatedServer", SteadyServer),
        mock.patch("simulation.schedule.WorldNotebook", Rows),
    ):
        world = run_schedule(plan.seed, plan)
    assert not world.violations, world.violations[:3]
    return list(rows)


def predict(plan: Plan) -> tuple[Outcome, PlannedRun]:
    # Pause, update, digests and the end of the pause; each is a request with a reply.
    install = INSTALL + 4 * REPLY
    costs = Costs(
        decode_seconds=DECODE,
        decode_seconds_per_request=PER_REQUEST,
        # With the way to the controller and back, and its journal.
        train_seconds=plan.step_seconds + 2 * LATENCY + 0.01,
        train_seconds_per_token=0.0,
        publish_seconds=install,
        install_seconds=install,
    )
    run = PlannedRun.of(make_recipe(plan), costs, tokens_held=20.0)
    run = replace(run, num_servers=plan.num_servers)
    return simulate(run, LENGTHS), run


CASES = {
    "synchronous": {"max_staleness": 0},
    "asynchronous, servers are slower": {"step_seconds": 0.2},
    "asynchronous, the trainer is slower": {"step_seconds": 4.0},
    "balanced": {"step_seconds": 1.6},
    "two servers": {"num_servers": 2, "step_seconds": 0.3},
    "few requests at once": {"max_running_requests": 8, "step_seconds": 0.3},
    "stragglers hold a strict queue up": {"order": "strict_admission", "max_staleness": 1},
    "the freshest first": {"order": "freshness", "max_staleness": 4, "step_seconds": 0.5},
    "rounds": {"oversampling": 1.5, "step_seconds": 0.5},
    "drain": {"interrupt": "drain", "step_seconds": 0.3},
}


TYPICAL = ("two servers",)
RARE = ("asynchronous, servers are slower", "balanced", "few requests at once", "drain")
"""Much as others; `make test-all` runs them."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name, marks=[pytest.mark.slow] * (name in RARE) + [pytest.mark.exhaustive] * (name not in TYPICAL)
        )
        for name in CASES
    ],
)
def test_the_prediction_is_what_the_real_controller_does(name: str) -> None:
    plan = make_plan(**CASES[name])
    measured = run_for_real(plan)
    outcome, run = predict(plan)
    assert len(measured) == NUM_STEPS
    steady = measured[slice(*steady_range(run))]
    seconds = sum(row["step_seconds"] for row in steady)
    assert outcome.step_seconds() == pytest.approx(seconds / len(steady), rel=0.05)
    idle = sum(row["rollout_idle_share"] * row["step_seconds"] for row in steady) / seconds
    assert outcome.rollout_idle() == pytest.approx(idle, abs=0.03)
    requests = sum(row["requests_per_server"] * row["step_seconds"] for row in steady) / seconds
    assert outcome.requests_per_server() == pytest.approx(requests, rel=0.05)
    assert outcome.staleness_max() == max(row["staleness_at_take"] for row in steady)
