"""What `asyncrl plan --simulate` predicts against what a run does: time per step, idle shares, staleness.

    python tests/benchmarks/plan_accuracy.py [--cores 0,1] [--only arithmetic,longtail] [--rounds 1]

Each case calibrates on one run and predicts others: another seed, and another staleness bound, batch or
number of requests. Nothing of a predicted run is used but its recipe. A machine that does other work gives
runs different speeds: use an idle one. The repeated calibrations, of one seed, show how much they differ, and
what each says of its own run how much the model itself leaves. The mean over all rounds counts, as identical
runs on two virtual cores may differ by more than the limits. Exit code 1 where a mean is off by more.
"""

import argparse
import os
import statistics
import sys
import tempfile
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from training_runs import ARITHMETIC, LONGTAIL, Run, train

from asyncrl.planning.measured import Measured, measure
from asyncrl.planning.outcome import Outcome, steady_range
from asyncrl.planning.settings import PlannedRun
from asyncrl.planning.simulation import simulate
from asyncrl.recipe.file import load_recipe

STEP_LIMIT = 0.15
"""Of the measured time per step."""
SHARE_LIMIT = 0.15
"""Difference of two shares, each of 0 to 1."""
QUIET = {"evaluation.every_steps": 0, "evaluation.num_tasks": 8}
"""Evaluations are left out of the model."""


@dataclass(frozen=True)
class Case:
    """A run to calibrate on, and runs to predict from it: overrides of one recipe."""

    recipe: Path
    calibration: dict[str, Any]
    predicted: tuple[dict[str, Any], ...]


CASES = {
    "arithmetic": Case(
        ARITHMETIC,
        {"seed": 0},
        (
            {"seed": 1, "rollout.max_staleness": 2},
            {"seed": 2, "rollout.groups_per_batch": 8},
            {"seed": 3, "serving.max_running_requests": 128},
        ),
    ),
    "longtail": Case(
        LONGTAIL,
        {"seed": 0, "trainer.num_steps": 40},
        (
            {"seed": 1, "rollout.max_staleness": 2, "trainer.num_steps": 32},
            {"seed": 2, "rollout.groups_per_batch": 8, "trainer.num_steps": 40},
            {"seed": 3, "serving.max_running_requests": 128, "trainer.num_steps": 32},
        ),
    ),
}


@dataclass(frozen=True)
class Figures:
    """Of the steady state."""

    step_seconds: float
    trainer_idle: float
    rollout_idle: float
    requests: float
    staleness: float
    tokens: float
    """Trained per step; lengths are predicted from the calibration, whatever the run learns to write."""

    def line(self, name: str) -> str:
        return (
            f"    {name:9s} {self.step_seconds:.3f} s per step, trainer idle {self.trainer_idle:.1%}, "
            f"servers idle {self.rollout_idle:.1%}, {self.requests:.0f} requests, "
            f"staleness {self.staleness:.2f}, {self.tokens:.0f} tokens per step"
        )


def of_outcome(outcome: Outcome) -> Figures:
    return Figures(
        outcome.step_seconds(),
        outcome.trainer_idle(),
        outcome.rollout_idle(),
        outcome.requests_per_server(),
        outcome.staleness_mean(),
        statistics.fmean(step.tokens_trained for step in outcome.steady()),
    )


def of_rows(rows: list[dict[str, Any]], steady: tuple[int, int | None]) -> Figures:
    """Over the same steps that the simulation calls its steady state."""
    rows = rows[slice(*steady)]
    seconds = sum(row["step_seconds"] for row in rows)

    def mean(key: str) -> float:
        return sum(float(row[key]) * float(row["step_seconds"]) for row in rows) / seconds

    waited = sum(row["wait_seconds"] + row.get("drain_seconds", 0.0) for row in rows)
    tokens = sum(row["num_tokens"] for row in rows)
    return Figures(
        seconds / len(rows),
        waited / seconds,
        mean("rollout_idle_share"),
        mean("requests_per_server"),
        sum(row["staleness_mean"] * row["num_tokens"] for row in rows) / tokens,
        tokens / len(rows),
    )


def mean_of(figures: list[Figures]) -> Figures:
    columns = zip(*map(astuple, figures), strict=True)
    return Figures(*map(statistics.fmean, columns))


def is_close(predicted: Figures, measured: Figures) -> bool:
    shares = [
        abs(predicted.trainer_idle - measured.trainer_idle),
        abs(predicted.rollout_idle - measured.rollout_idle),
    ]
    off = abs(predicted.step_seconds / measured.step_seconds - 1.0)
    return off <= STEP_LIMIT and max(shares) <= SHARE_LIMIT


@dataclass(frozen=True)
class Compared:
    """What was predicted of a run, and what it did."""

    predicted: Figures
    measured: Figures

    def print(self, name: str) -> None:
        off = self.predicted.step_seconds / self.measured.step_seconds - 1.0
        print(f"  {name}: step {off:+.1%}, {'close' if self.is_close() else 'NOT close'}")
        print(self.predicted.line("predicted"))
        print(self.measured.line("measured"), flush=True)

    def is_close(self) -> bool:
        return is_close(self.predicted, self.measured)


def run_case(case: Case, cores: str) -> list[Compared]:
    """Each predicted run.

    The calibration is repeated before and after each predicted run, which is compared with the mean of what
    both predict: a machine whose speed drifts would else be taken for a wrong model.
    """
    compared, before = [], calibrate(case, cores)
    for overrides in case.predicted:
        run = train(case.recipe, cores, **_keys(overrides))
        after = calibrate(case, cores)
        compared.append(compare(case, overrides, (before, after), run))
        before = after
    return compared


def calibrate(case: Case, cores: str) -> Measured:
    """One run and what is measured of it; prints how well that tells the run itself."""
    with tempfile.TemporaryDirectory(prefix="asyncrl-plan-") as folder:
        run = train(case.recipe, cores, folder=Path(folder), **_keys(case.calibration))
        measured = measure(Path(folder) / "run")
    costs = measured.costs
    print(
        f"  decode step {1e3 * costs.decode_seconds:.2f} ms and "
        f"{1e3 * costs.decode_seconds_per_request:.3f} ms per request; training "
        f"{costs.train_seconds:.3f} s and {1e6 * costs.train_seconds_per_token:.1f} us per token; "
        f"publishing {1e3 * costs.publish_seconds:.0f} ms, {1e3 * costs.install_seconds:.0f} ms of it a "
        f"pause"
    )
    compare(case, case.calibration, (measured,), run)
    return measured


def compare(case: Case, overrides: dict[str, Any], sources: tuple[Measured, ...], run: Run) -> Compared:
    """The mean of the predictions and the run; prints both."""
    recipe = load_recipe(case.recipe, [f"{key}={value}" for key, value in (QUIET | overrides).items()])
    planned = [
        PlannedRun.of(recipe, source.costs, tokens_held=source.lengths.tokens_held) for source in sources
    ]
    predicted = mean_of(
        [of_outcome(simulate(p, source.lengths)) for p, source in zip(planned, sources, strict=True)]
    )
    compared = Compared(predicted, of_rows(run.steps, steady_range(planned[0])))
    compared.print(str(overrides))
    return compared


def _keys(overrides: dict[str, Any]) -> dict[str, Any]:
    """As `train` wants them."""
    return {key.replace(".", "__"): value for key, value in (QUIET | overrides).items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cores", default="0,1")
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--rounds", type=int, default=1)
    arguments = parser.parse_args()
    os.chdir(Path(__file__).resolve().parents[2])
    rounds: dict[str, list[list[Compared]]] = {name: [] for name in arguments.only.split(",")}
    for number in range(arguments.rounds):
        for name, compared in rounds.items():
            print(f"{name}, round {number + 1}, load {os.getloadavg()[0]:.1f}", flush=True)
            compared.append(run_case(CASES[name], arguments.cores))
    means = [mean for name, compared in rounds.items() for mean in report(name, compared)]
    close = sum(mean.is_close() for mean in means)
    print(f"{close} of {len(means)} predictions within {STEP_LIMIT:.0%} and {SHARE_LIMIT:.0%}")
    return 0 if close == len(means) else 1


def report(name: str, rounds: list[list[Compared]]) -> list[Compared]:
    """The mean over rounds of each predicted run; prints them."""
    print(f"{name}, means of {len(rounds)} rounds")
    means = []
    for overrides, of_run in zip(CASES[name].predicted, zip(*rounds, strict=True), strict=True):
        mean = Compared(mean_of([c.predicted for c in of_run]), mean_of([c.measured for c in of_run]))
        seconds = sorted(c.measured.step_seconds for c in of_run)
        mean.print(f"{overrides}, measured {seconds[0]:.3f} to {seconds[-1]:.3f} s")
        means.append(mean)
    return means


if __name__ == "__main__":
    sys.exit(main())
