"""Stated distributions of simulated runs: response lengths, and the pilots of adaptive groups to extend."""

import functools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from asyncrl.data.files import read_rows
from asyncrl.errors import InputError
from asyncrl.recipe import Recipe
from asyncrl.records import RowVisit
from asyncrl.tasks.pass_rates import FEWEST_VISITED, PassRates, all_same

SAMPLE = 20_000
"""Lengths drawn of a distribution, once."""


@dataclass(frozen=True)
class Lengths:
    """Response tokens of groups in the order of their admission; after the last one comes the first again."""

    groups: Sequence[Sequence[int]]
    prompt_tokens: float
    """Mean."""

    def of_group(self, number: int, count: int) -> list[int]:
        """Tokens of the `count` responses of the group that is admitted as `number`, from 0."""
        group = self.groups[number % len(self.groups)]
        return [group[index % len(group)] for index in range(count)]

    def mean(self) -> float:
        """Tokens of a response."""
        lengths = [tokens for group in self.groups for tokens in group]
        return sum(lengths) / len(lengths)

    @functools.cached_property
    def tokens_held(self) -> float:
        """Tokens of a running request at a random moment: its prompt and what it has generated. A long one
        runs for longer, so that half of E[length^2] / E[length] is generated."""
        lengths = [tokens for group in self.groups for tokens in group]
        return self.prompt_tokens + sum(n * n for n in lengths) / (2 * max(1, sum(lengths)))


def log_normal_lengths(
    mean_tokens: float, spread: float, *, limit: int, samples_per_group: int, prompt_tokens: float
) -> Lengths:
    """Responses with a long tail: the logarithm of the length is normal, with the standard deviation `spread`
    (0: all alike); cut at `limit`. `mean_tokens` is the mean before the cut."""
    chance, center = random.Random(0), math.log(mean_tokens) - spread**2 / 2

    def one() -> int:
        return min(limit, max(1, round(math.exp(chance.gauss(center, spread)))))

    num_groups = max(1, SAMPLE // samples_per_group)
    return Lengths([[one() for _ in range(samples_per_group)] for _ in range(num_groups)], prompt_tokens)


# Pilots: a group's row has a pass rate of the distribution, and each of its answers is right with that
# chance. The rule is the run's own (`rollout.adaptive`), for rows that have no record yet: what is known of
# rows is the distribution. With `replay.drops_no_signal` groups without two rewards are dropped here, too.
COLUMN = "pass_rate"
NUM_ASSUMED = 1000
"""Pass rates that stand for the assumed distribution, in which all are equally likely."""


@dataclass(frozen=True, slots=True)
class PlannedPilots:
    rates: Sequence[float]
    """Pass rates of rows, asked one after the other; after the last one comes the first again."""
    num_pilot: int
    num_samples: int
    """Trajectories of a pilot, and of a whole group."""
    min_chance: float
    prior: tuple[float, float] = (1.0, 1.0)
    """a and b of the Beta distribution that is known of rows."""
    max_dropped_in_a_row: int = 0
    """Groups without a signal are dropped, up to this many in a row; 0: they are trained."""

    def rewards(self, number: int) -> list[bool]:
        """Rewards of the whole group that is admitted as `number`, from 0."""
        rate, chance = self.rates[number % len(self.rates)], random.Random(f"rewards {number}")
        return [chance.random() < rate for _ in range(self.num_samples)]

    def extends(self, rewards: Sequence[bool]) -> bool:
        """Whether a pilot with these rewards gets the rest of its group."""
        num_right = sum(rewards)
        if 0 < num_right < len(rewards):
            return True
        a, b = self.prior[0] + num_right, self.prior[1] + len(rewards) - num_right
        num_more = self.num_samples - len(rewards)
        same = all_same(a, b, num_more) if num_right else all_same(b, a, num_more)
        return 1.0 - float(same) >= self.min_chance


def plan_pilots(recipe: Recipe, path: str | None) -> PlannedPilots | None:
    """None where groups are admitted whole. `path` of rows with the column pass_rate; None assumes that all
    pass rates are equally likely. Raises InputError."""
    rollout = recipe.rollout
    if rollout.pilot_samples is None:
        if path is not None:
            raise InputError(
                "--pass-rates is given, but the recipe has no rollout.pilot_samples: whole groups need no "
                "pass rates. Leave it out."
            )
        return None
    rates = [(i + 0.5) / NUM_ASSUMED for i in range(NUM_ASSUMED)] if path is None else _read(path)
    random.Random(0).shuffle(rates)
    return PlannedPilots(
        rates,
        rollout.pilot_samples,
        rollout.samples_per_group,
        rollout.pilot_min_chance,
        _prior_of(rates, rollout.samples_per_group),
        recipe.replay.max_dropped_in_a_row if recipe.replay.drops_no_signal else 0,
    )


def _prior_of(rates: Sequence[float], num_samples: int) -> tuple[float, float]:
    """The prior that a run would fit once it has visited each row with one group."""
    chance, known = random.Random(0), PassRates(len(rates), half_life=1.0)
    for row, rate in enumerate(rates):
        share = sum(chance.random() < rate for _ in range(num_samples)) / num_samples
        known.add(row, RowVisit(0, row, num_samples, share))
    known.fit(0)
    return known.prior()


def _read(path: str) -> list[float]:
    rates: list[float] = []
    for found in read_rows(path, key="--pass-rates"):
        if COLUMN not in found.row:
            raise InputError(f'{found.where}: no "{COLUMN}", which `asyncrl difficulty` writes.')
        rate = found.row[COLUMN]
        if rate is None:
            continue
        if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0.0 <= rate <= 1.0:
            raise InputError(
                f'{found.where}: "{COLUMN}" is {rate!r}, expected a number from 0 to 1, or null.'
            )
        rates.append(float(rate))
    if len(rates) < FEWEST_VISITED:
        raise InputError(
            f"--pass-rates is {path}, which has {len(rates)} rates, expected {FEWEST_VISITED} or more."
        )
    return rates
