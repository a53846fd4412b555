"""The outcome of a simulated run, step by step, and the figures of its steady state."""

import statistics
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple


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
    staleness_mean: float
    """Mean over the batch's tokens, in versions."""
    staleness_max: int


@dataclass(slots=True)
class Outcome:
    """Outcome of one simulated run."""

    num_servers: int
    max_running_requests: int
    steps: list[PlannedStep] = field(default_factory=list)
    staleness: Counter[int] = field(default_factory=Counter)
    """Versions -> trained tokens that were that old, over the whole run."""
    tokens_dropped: float = 0.0
    num_server_failures: int = 0
    num_trainer_failures: int = 0
    num_events: int = 0
    first_steady: int = 0
    last_steady: int | None = None

    def steady(self) -> list[PlannedStep]:
        """Steps without the first ones, and the last ones, which generate little."""
        return self.steps[self.first_steady : self.last_steady] or self.steps

    def seconds(self) -> float:
        return sum(step.step_seconds for step in self.steady())

    def step_seconds(self) -> float:
        return statistics.fmean(step.step_seconds for step in self.steady())

    def steps_per_hour(self) -> float:
        return 3600.0 / self.step_seconds()

    def trainer_idle(self) -> float:
        """Share of its time in which it waits for the rollout side."""
        return sum(step.waited_seconds for step in self.steady()) / self.seconds()

    def rollout_idle(self) -> float:
        """Share of the servers' time without any request, as the metric rollout_idle_share."""
        busy = sum(step.server_busy_seconds for step in self.steady())
        return max(0.0, 1.0 - busy / (self.num_servers * self.seconds()))

    def requests_per_server(self) -> float:
        return sum(step.request_seconds for step in self.steady()) / (self.num_servers * self.seconds())

    def tokens_per_second(self) -> float:
        """Tokens generated per second."""
        return sum(step.tokens_generated for step in self.steady()) / self.seconds()

    def trained_tokens_per_second(self) -> float:
        return sum(step.tokens_trained for step in self.steady()) / self.seconds()

    def staleness_mean(self) -> float:
        total = sum(step.tokens_trained for step in self.steady())
        return sum(step.staleness_mean * step.tokens_trained for step in self.steady()) / max(total, 1e-9)

    def staleness_max(self) -> int:
        return max(step.staleness_max for step in self.steady())
