"""The parts of a simulated run: the recipe's rules, its costs in seconds, and its outcome step by step."""

import math
import statistics
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from asyncrl.readers.planning.distributions import PlannedPilots
from asyncrl.recipe import Recipe
from asyncrl.replay.settings import QueueSettings


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
