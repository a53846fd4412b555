"""The plan of the ablation: every cell (arm x lag x noise x seed x rate), what it costs, what is compared.

A batch's age is the version that trains it minus the one that sampled it. In a cell of lag L the update from
version s trains a batch that version max(0, s - L) sampled whole (forced_lag.py): L updates on data of
growing age come first, since nothing older than version 0 exists, then NUM_UPDATES on data of age L. All arms
of a lag have the same number of updates on data of the same ages.
"""

import functools
import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.benchmarks.algorithms.arms import ARMS, FACTORS, MAIN, arm_of
from tests.benchmarks.paired import mean_height

ROOT = Path(__file__).resolve().parents[3]
FORMAT = 2
"""Raised when a cell means something else though its keys are the same."""
NUM_UPDATES = 48
"""On data of the cell's full age."""
SEEDS = tuple(range(10))
TUNING_SEEDS = (100, 101, 102)
"""None of SEEDS: what chose a rate does not judge it."""
RATES = (0.5, 1.0, 2.0, 4.0)
"""Learning rates tried per arm, in multiples of the recipe's."""
TUNING_LAG = 16
NOISES = (0.01, 0.03, 0.1)
"""Noise on the weights that roll out, over the root mean square of each tensor."""
NOISE_LAG = 4
RECIPES = {
    "reasoning": Path("recipes/r1_zero_reasoning_cpu.yaml"),
    "tail": Path("recipes/r1_zero_longtail_cpu.yaml"),
}
COMMON: dict[str, Any] = {
    # Half the recipe's batch: the curve rises over the whole run. With one step per batch no clip would bind.
    "rollout.groups_per_batch": 8,
    "trainer.optimizer_steps_per_batch": 2,
    "algorithm.clip_high": 0.28,
    # At 1e-8 an arm can fall for a reason that is none of its own: tokens that are certain drift
    # (docs/algorithms.md, "Epsilon"). Truncated weights at lag 16, seed 0: 36% at the end, 86% at 1e-6.
    "trainer.adam_epsilon": 1e-6,
}
EVERY_UPDATES = 8
"""Between the points of the held-out curve: the accuracy of one sample of each held-out task. Greedy accuracy
is near 1 after 40 of the recipe's batches; of samples a third are still wrong."""
HELDOUT_TASKS = {"reasoning": 256, "tail": 64}


@dataclass(frozen=True, order=True)
class Cell:
    """One run."""

    axis: str
    arm: str
    lag: int
    noise: float
    seed: int
    rate: float
    """Learning rate, in multiples of the recipe's."""

    @property
    def recipe(self) -> str:
        """Name in RECIPES."""
        return "tail" if self.axis == "tail" else "reasoning"

    @property
    def num_updates(self) -> int:
        return self.lag + NUM_UPDATES

    @property
    def place(self) -> tuple[str, str, int, float]:
        """The cell without its seed and rate."""
        return self.axis, self.arm, self.lag, self.noise

    def name(self) -> str:
        parts = (self.axis, self.arm.replace("/", "_"), f"lag{self.lag}", f"noise{self.noise:g}")
        return "-".join((*parts, f"seed{self.seed}", f"rate{self.rate:g}"))

    def keys(self) -> dict[str, Any]:
        """Settings of the run beyond its recipe."""
        arm = arm_of(self.arm)
        recipe = _raw_recipe(RECIPES[self.recipe])
        return {
            **COMMON,
            **arm.keys,
            "rollout.max_staleness": self.lag,
            "trainer.num_steps": self.num_updates,
            "trainer.learning_rate": self.rate * float(recipe["trainer"]["learning_rate"]),
            "seed": self.seed,
        }

    def digest(self) -> str:
        """Digest of all that the run is told: its recipe's keys (not its comments), this cell's, and FORMAT.
        Defaults of keys that neither states are not part of it."""
        recipe = _raw_recipe(RECIPES[self.recipe])
        told = {"format": FORMAT, "recipe": recipe, "keys": self.keys(), "noise": self.noise}
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]


@functools.cache
def _raw_recipe(path: Path) -> dict[str, Any]:
    raw: dict[str, Any] = yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))
    return raw


@dataclass(frozen=True)
class Row:
    """A cell that was run, as a line of the results."""

    axis: str
    arm: str
    lag: int
    noise: float
    seed: int
    rate: float
    digest: str
    heldout: list[tuple[int, float]]
    """(version, accuracy of one sample per held-out task) of every evaluation."""
    greedy: tuple[float, float]
    """Greedy held-out accuracy before and after training."""
    rewards: list[float]
    """Mean of each update's batch."""
    mismatch_kl: float | None
    """Mean over the updates that measured it: those with tokens of the trainer's own version."""
    cpu_seconds: float
    wall_seconds: float
    version: str
    """Commit of the code."""

    @property
    def cell(self) -> Cell:
        return Cell(self.axis, self.arm, self.lag, self.noise, self.seed, self.rate)

    def area(self) -> float:
        """The outcome: mean height of the held-out curve while data have the cell's full age."""
        return mean_height(self.heldout, self.lag, self.lag + NUM_UPDATES)

    def line(self) -> str:
        return json.dumps(asdict(self)) + "\n"


@dataclass(frozen=True)
class Comparison:
    """Named before anything was run: `arm` against `reference`, paired by seed."""

    axis: str
    lag: int
    noise: float
    reference: str
    arm: str


COMPARISONS: tuple[Comparison, ...] = (
    # Each term against the arm that lacks it, where data are old.
    *(Comparison("staleness", 16, 0.0, arm.reference, name) for name, arm in ARMS.items() if name != "none"),
    # Where they are far older than runs usually allow.
    *(
        Comparison("staleness", lag, 0.0, *pair)
        for lag in (64, 128)
        for pair in (("none", "truncated"), ("truncated", "decoupled"), ("truncated", "dppo"))
    ),
    Comparison("mismatch", NOISE_LAG, 0.1, "none", "truncated"),
    Comparison("tail", 16, 0.0, "truncated", "sequence_masked"),
    Comparison("factors", 0, 0.0, "grpo/token_mean/0.28", "dr_grpo/token_mean/0.28"),
)
MOST_COMPARISONS = 20
"""Ten pairs give p of at least 2/1024; times 20 that is still below 0.05."""


def places() -> list[tuple[str, str, int, float]]:
    """(axis, arm, lag, noise) of everything measured, the most important first."""
    order = [*MAIN, *(name for name in ARMS if name not in MAIN)]
    staleness = [
        *(("staleness", arm, 16, 0.0) for arm in order),
        *(("staleness", arm, lag, 0.0) for lag in (64, 128) for arm in MAIN),
        *(("staleness", arm, lag, 0.0) for lag in (4, 1) for arm in order),
        # Without stale tokens nothing is to interpolate: recipes refuse it.
        *(("staleness", arm, 0, 0.0) for arm in order if arm != "a3po"),
    ]
    mismatch = [("mismatch", arm, NOISE_LAG, noise) for noise in reversed(NOISES) for arm in MAIN]
    tail = [("tail", arm, 16, 0.0) for arm in ("none", "truncated", "sequence_masked", "geometric")]
    return [*staleness, *mismatch, *tail, *(("factors", arm, 0, 0.0) for arm in FACTORS)]


def tuning_cells() -> list[Cell]:
    """Every rate of every arm, on seeds of their own."""
    found = itertools.product(ARMS, TUNING_SEEDS, RATES)
    return [Cell("tuning", arm, TUNING_LAG, 0.0, seed, rate) for arm, seed, rate in found]


def tuned_rate(arm: str, rows: Iterable[Row]) -> float | None:
    """The rate with the largest mean area over the tuning seeds, None until all of the arm's tuning cells are
    there. Arms of `factors` take that of truncated."""
    arm = arm if arm in ARMS else "truncated"
    areas = {row.cell: row.area() for row in rows if row.axis == "tuning" and row.arm == arm}
    wanted = [cell for cell in tuning_cells() if cell.arm == arm]
    if any(cell not in areas for cell in wanted):
        return None
    means = {rate: sum(areas[cell] for cell in wanted if cell.rate == rate) for rate in RATES}
    return max(means, key=means.__getitem__)


@dataclass(frozen=True)
class Plan:
    """All cells, with the rates that the rows chose; without them the recipe's own."""

    cells: list[Cell]
    is_tuned: Mapping[str, bool]
    """By arm."""


def make_plan(rows: Sequence[Row]) -> Plan:
    """Tuning first, then seed by seed, so that a plan that is cut has whole pairs of the first seeds."""
    chosen = {name: tuned_rate(name, rows) for name in (*ARMS, *FACTORS)}
    rates = {name: 1.0 if rate is None else rate for name, rate in chosen.items()}
    cells = [
        Cell(axis, arm, lag, noise, seed, rates[arm])
        for axis in ("staleness", "mismatch", "tail", "factors")
        for lag, seed in itertools.product((16, 64, 128, 0, 4, 1), SEEDS)
        for own, arm, place_lag, noise in places()
        if (own, place_lag) == (axis, lag)
    ]
    return Plan([*tuning_cells(), *cells], {name: rate is not None for name, rate in chosen.items()})


@dataclass(frozen=True)
class Costs:
    """CPU seconds of a cell: per start and per update, by recipe, measured in rows of this program."""

    per_start: float
    per_update: Mapping[str, float]

    def of(self, cell: Cell) -> float:
        return self.per_start + cell.num_updates * self.per_update[cell.recipe]

    def hours(self, cells: Iterable[Cell]) -> float:
        """Hours of one core that the cells take."""
        return sum(map(self.of, cells)) / 3600


def fit_costs(rows: Sequence[Row], before: Costs) -> Costs:
    """The mean cost per update of the rows of each recipe beyond a start; `before` where there is no row. A
    start is not fitted: it is as long in each cell, and few lags would not tell it from an update."""
    found = dict(before.per_update)
    for recipe in RECIPES:
        own = [(row.cpu_seconds, row.cell) for row in rows if row.cell.recipe == recipe]
        if own:
            updates = sum(cell.num_updates for _, cell in own)
            spent = sum(max(0.0, seconds - before.per_start) for seconds, _ in own)
            found[recipe] = spent / updates
    return Costs(before.per_start, found)
