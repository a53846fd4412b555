"""The parts of a simulated run: the recipe's rules, stated distributions of response lengths and pass rates,
costs in seconds, and its outcome step by step."""

import functools
import math
import random
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from asyncrl.data.files import read_rows
from asyncrl.errors import InputError
from asyncrl.recipe import Recipe
from asyncrl.records import RowVisit
from asyncrl.replay.settings import QueueSettings
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
# chance. The rule is the run's own (`AdaptiveGroups`), for rows that have no record yet: what is known of
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


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of wall-clock time."""

    decode_seconds: float
    """Time of a server's decode step, however many requests it holds."""
    decode_seconds_per_request: float
    """More of the step for each request in it; every request gets one token per step."""
    train_seconds: float
    """Time of a training step, however many tokens it has."""
    train_seconds_per_token: float
    """More for each of `training_tokens`."""
    publish_seconds: float
    """From the end of training to the last server's answer."""
    install_seconds: float
    """The last part of it, in which servers generate nothing."""
    admit_seconds: float = 0.0
    """Controller time from one new group to the next: it admits them one by one."""
    prefill_group_seconds: float = 0.0
    """Server time for the prompt of a group; nothing decodes meanwhile."""
    prefill_seconds_per_token: float = 0.0
    """Server time per token, where a request resumes from its prefix."""
    origin: str = "given"
    """Where the figures come from, in one line."""

    def decode_latency(self, num_requests: float) -> float:
        """Seconds per token of each of `num_requests` on one server."""
        return self.decode_seconds + self.decode_seconds_per_request * num_requests

    def training(self, num_tokens: float) -> float:
        """Seconds of a step on `num_tokens` of `training_tokens`."""
        return self.train_seconds + self.train_seconds_per_token * num_tokens


def training_tokens(
    num_groups: float, *, samples_per_group: float, prompt_tokens: float, response_tokens: float
) -> float:
    """Tokens of a step: each group's prompt once, and all `response_tokens` but the last of each response.

    Other shared prefixes are packed once too, but how much that saves depends on their text.
    """
    return num_groups * (prompt_tokens - samples_per_group) + response_tokens


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A run to simulate."""

    queue: QueueSettings
    costs: Costs
    num_servers: int
    max_running_requests: int
    """Limit of one server; more wait in the queue of groups."""
    decode_slots: float
    """Requests of one server that its key-value cache holds at once; more take turns."""
    oversampling: float | None = None
    interrupt: str = "continue"
    pilots: PlannedPilots | None = None
    """None where groups are admitted whole."""

    @classmethod
    def of(
        cls,
        recipe: Recipe,
        costs: Costs,
        *,
        tokens_held: float,
        cache_tokens: float = math.inf,
        pilots: PlannedPilots | None = None,
    ) -> "PlannedRun":
        """`tokens_held` by a running request on average, prompt included; `cache_tokens` of a server where
        the recipe leaves them to the engine."""
        serving, rollout = recipe.serving, recipe.rollout
        return cls(
            queue=QueueSettings.of(recipe),
            costs=costs,
            num_servers=serving.fleet_size(),
            max_running_requests=serving.max_running_requests,
            decode_slots=(serving.max_total_tokens or cache_tokens) / max(tokens_held, 1.0),
            oversampling=rollout.oversampling,
            interrupt=rollout.interrupt,
            pilots=pilots,
        )

    def with_queue(self, **changes: int) -> "PlannedRun":
        """The same run with other settings of the queue."""
        return replace(self, queue=replace(self.queue, **changes))  # type: ignore[arg-type]

    def scaled_to(self, most_trajectories: int) -> tuple["PlannedRun", float]:
        """A run whose batches have no more trajectories, and its share of the servers.

        What it predicts per server is about the same, because servers and groups are many and alike. The
        trainer keeps its time per step.
        """
        share = most_trajectories / (self.queue.groups_per_batch * self.queue.samples_per_group)
        if share >= 1.0:
            return self, 1.0
        servers = max(1, round(self.num_servers * share))
        groups = max(1, round(self.queue.groups_per_batch * servers / self.num_servers))
        # There are one trainer and one controller, whatever part of the groups is left.
        factor = self.queue.groups_per_batch / groups
        costs = replace(
            self.costs,
            train_seconds_per_token=factor * self.costs.train_seconds_per_token,
            admit_seconds=factor * self.costs.admit_seconds,
        )
        small = replace(self.with_queue(groups_per_batch=groups), costs=costs, num_servers=servers)
        return small, servers / self.num_servers


class PlannedStep(NamedTuple):
    """A step, from one take to the next."""

    step_seconds: float
    waited_seconds: float
    """The trainer's wait, for a batch or for servers to drain."""
    server_busy_seconds: float
    """Sum over servers."""
    request_seconds: float
    tokens_generated: float
    tokens_trained: float
    staleness: dict[int, float]
    """Versions -> the batch's tokens that are that old."""
    num_responses: int
    """In the batch."""


@dataclass(slots=True)
class Outcome:
    """Outcome of one simulated run."""

    run: PlannedRun
    steps: list[PlannedStep] = field(default_factory=list)

    def steady(self) -> list[PlannedStep]:
        """Steps without the first ones, and the last ones, which generate little."""
        return self.steps[slice(*steady_range(self.run))] or self.steps

    def seconds(self) -> float:
        return sum(step.step_seconds for step in self.steady())

    def step_seconds(self) -> float:
        return statistics.fmean(step.step_seconds for step in self.steady())

    def trainer_idle(self) -> float:
        """Share of its time in which it waits for the rollout side."""
        return sum(step.waited_seconds for step in self.steady()) / self.seconds()

    def rollout_idle(self) -> float:
        """Share of the servers' time without any request, as the metric rollout_idle_share."""
        busy = sum(step.server_busy_seconds for step in self.steady())
        return max(0.0, 1.0 - busy / (self.run.num_servers * self.seconds()))

    def requests_per_server(self) -> float:
        return sum(step.request_seconds for step in self.steady()) / (self.run.num_servers * self.seconds())

    def tokens_per_second(self) -> float:
        """Tokens generated per second."""
        return sum(step.tokens_generated for step in self.steady()) / self.seconds()

    def trained_tokens_per_second(self) -> float:
        return sum(step.tokens_trained for step in self.steady()) / self.seconds()

    def responses_per_group(self) -> float:
        """Mean over the groups of batches: below the recipe's where pilots stop."""
        steps = self.steady()
        return sum(step.num_responses for step in steps) / (len(steps) * self.run.queue.groups_per_batch)

    def staleness(self) -> dict[int, float]:
        """Versions -> share of the trained tokens that were that old."""
        tokens = Counter[int]()
        for step in self.steady():
            tokens.update(step.staleness)
        total = sum(tokens.values())
        return {age: count / total for age, count in sorted(tokens.items())}

    def staleness_mean(self) -> float:
        return sum(age * share for age, share in self.staleness().items())

    def staleness_max(self) -> int:
        return max(self.staleness())


def steady_range(run: PlannedRun) -> tuple[int, int | None]:
    """Steps of the steady state, as a slice: the first ones fill the queue, the last ones empty it."""
    ahead, count = run.queue.batches_ahead(), run.queue.num_steps
    first, last = ahead + 1, count - ahead
    return (first, last) if last - first >= 4 else (0, None)
