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

from tests.benchmarks.algorithms.arms import ARMS, SINGLE, WEIGHTS
from tests.benchmarks.paired import mean_height

ROOT = Path(__file__).resolve().parents[3]
FORMAT = 3
"""Raised when a cell means something else though its keys are the same."""
NUM_UPDATES = 48
"""On data of the cell's full age."""
SEEDS = tuple(range(10))
"""Seeds of a place of a primary comparison or of single rollouts; other places have FEW_SEEDS of them."""
FEW_SEEDS = SEEDS[:5]
TUNING_SEEDS = (100, 101)
"""None of SEEDS: what chose a rate does not judge it."""
RATES = (0.5, 1.0, 2.0)
"""Learning rates tried per arm, in multiples of the recipe's."""
TUNING_LAG = 16
NOISE, NOISE_LAG = 0.1, 4
"""The mismatch of engines: noise on the weights that roll out, over the root mean square of each tensor."""
RECIPE = Path("recipes/r1_zero_reasoning_cpu.yaml")
BASE = Path("asyncrl/examples/base_models/reasoning/made.json")
"""Digests of the base model that comes with asyncrl: to train it on another CPU gives another one."""
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
"""Between the points of the held-out curve, one of which is at the cell's lag: the accuracy of one sample of
each held-out task. Greedy accuracy is near 1 after 40 of the recipe's batches; of samples a third are still
wrong."""
HELDOUT_TASKS = 256
Place = tuple[str, str, int, float]
"""(axis, arm, lag, noise): the cells that differ in their seeds."""


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
    def num_updates(self) -> int:
        return self.lag + NUM_UPDATES

    @property
    def place(self) -> Place:
        return self.axis, self.arm, self.lag, self.noise

    def name(self) -> str:
        parts = (self.axis, self.arm, f"lag{self.lag}", f"noise{self.noise:g}")
        return "-".join((*parts, f"seed{self.seed}", f"rate{self.rate:g}"))

    def keys(self) -> dict[str, Any]:
        """Settings of the run beyond its recipe."""
        return {
            **COMMON,
            **ARMS[self.arm].keys,
            "rollout.max_staleness": self.lag,
            "trainer.num_steps": self.num_updates,
            "trainer.learning_rate": self.rate * float(_raw_recipe()["trainer"]["learning_rate"]),
            "seed": self.seed,
        }

    def digest(self) -> str:
        """Digest of all that the run is told: its recipe's keys (not its comments), this cell's, the base
        model and FORMAT. Defaults of keys that neither states are not part of it."""
        told = {"format": FORMAT, "recipe": _raw_recipe(), "keys": self.keys(), "noise": self.noise}
        told["base"] = json.loads((ROOT / BASE).read_text(encoding="utf-8"))["files"]
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]


@functools.cache
def _raw_recipe() -> dict[str, Any]:
    raw: dict[str, Any] = yaml.safe_load((ROOT / RECIPE).read_text(encoding="utf-8"))
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
    """Named before it was run: `arm` against `reference`, paired by seed."""

    axis: str
    lag: int
    noise: float
    reference: str
    arm: str

    def places(self) -> tuple[Place, Place]:
        """The reference's and the arm's."""
        return (self.axis, self.reference, self.lag, self.noise), (self.axis, self.arm, self.lag, self.noise)


COMPARISONS: tuple[Comparison, ...] = (
    *(Comparison("staleness", 16, 0.0, arm.reference, name) for name, arm in ARMS.items() if name != "none"),
    Comparison("mismatch", NOISE_LAG, NOISE, "none", "truncated"),
    *(
        Comparison("mismatch", NOISE_LAG, NOISE, "truncated", name)
        for name in ("masked", "sequence_masked", "dppo")
    ),
)
"""The primary comparisons. All else is effect sizes with intervals, without a test."""
MOST_COMPARISONS = 20
"""Ten pairs give p of at least 2/1024; times 20 that is still below 0.05."""
MOST_CELLS = 600


def primary_places() -> list[Place]:
    return list(dict.fromkeys(place for comparison in COMPARISONS for place in comparison.places()))


def single_places() -> list[Place]:
    """Single rollouts beside groups, at each lag."""
    return [("staleness", arm, lag, 0.0) for lag in (0, 4, 16) for arm in ("truncated", *SINGLE)]


def places() -> list[Place]:
    """Everything measured, that of primary comparisons first, then that of single rollouts."""
    others = [
        *single_places(),
        *(("mismatch", arm, NOISE_LAG, NOISE) for arm in ARMS),
        *(("staleness", arm, 4, 0.0) for arm in ARMS),
        *(("staleness", arm, 0, 0.0) for arm in ARMS if arm not in WEIGHTS),
    ]
    return list(dict.fromkeys((*primary_places(), *others)))


def seeds_of(place: Place) -> tuple[int, ...]:
    return SEEDS if place in (*primary_places(), *single_places()) else FEW_SEEDS


def tuning_cells(arm: str) -> list[Cell]:
    """Every rate, on seeds of their own."""
    found = itertools.product(TUNING_SEEDS, RATES)
    return [Cell("tuning", arm, TUNING_LAG, 0.0, seed, rate) for seed, rate in found]


def tuned_rate(arm: str, rows: Iterable[Row]) -> float | None:
    """The rate with the largest mean area over the tuning seeds, None until all of the arm's tuning cells are
    there."""
    areas = {row.cell: row.area() for row in rows if row.axis == "tuning" and row.arm == arm}
    wanted = tuning_cells(arm)
    if any(cell not in areas for cell in wanted):
        return None
    means = {rate: sum(areas[cell] for cell in wanted if cell.rate == rate) for rate in RATES}
    return max(means, key=means.__getitem__)


@dataclass(frozen=True)
class Plan:
    """All cells, with the rates that the rows chose; without them the recipe's own, at which none is run."""

    cells: list[Cell]
    is_tuned: Mapping[str, bool]
    """By arm."""

    def is_ready(self, cell: Cell) -> bool:
        """Whether its rate is known."""
        return cell.axis == "tuning" or self.is_tuned[cell.arm]


def make_plan(rows: Sequence[Row]) -> Plan:
    """The places with all SEEDS in turn, then the others seed by seed, so that a plan that is cut has whole
    pairs of the first seeds; the tuning of an arm before its first cell."""
    chosen = {name: tuned_rate(name, rows) for name in ARMS}
    many = [place for place in places() if seeds_of(place) == SEEDS]
    places_and_seeds = [
        *itertools.product(many, SEEDS),
        *((place, seed) for seed in FEW_SEEDS for place in places() if place not in many),
    ]
    cells = [
        cell
        for place, seed in places_and_seeds
        for cell in (*tuning_cells(place[1]), Cell(*place, seed, chosen[place[1]] or 1.0))
    ]
    return Plan(list(dict.fromkeys(cells)), {name: rate is not None for name, rate in chosen.items()})


@dataclass(frozen=True)
class Costs:
    """CPU seconds of a cell, measured in rows of this program."""

    per_start: float
    per_update: float

    def of(self, cell: Cell) -> float:
        return self.per_start + cell.num_updates * self.per_update

    def hours(self, cells: Iterable[Cell]) -> float:
        """Hours of one core that the cells take."""
        return sum(map(self.of, cells)) / 3600


def fit_costs(rows: Sequence[Row], before: Costs) -> Costs:
    """The mean cost per update of the rows beyond a start; `before` without a row. A start is not fitted: it
    is as long in each cell, and few lags would not tell it from an update."""
    if not rows:
        return before
    spent = sum(max(0.0, row.cpu_seconds - before.per_start) for row in rows)
    return Costs(before.per_start, spent / sum(row.cell.num_updates for row in rows))
