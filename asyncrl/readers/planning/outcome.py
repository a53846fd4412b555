"""The outcome of a simulated run, step by step, and the figures of its steady state."""

import statistics
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from asyncrl.readers.planning.settings import PlannedRun


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
