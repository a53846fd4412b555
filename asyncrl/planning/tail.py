"""Long responses against the staleness bound: whether rollout.max_staleness starves the servers.

A group must be trained within max_staleness steps of its admission. While the longest response takes more
steps than that, the trainer waits for it, and the bound keeps the servers from beginning anything else.
"""

import math
from dataclasses import dataclass

from asyncrl.planning.lengths import Lengths
from asyncrl.planning.settings import PlannedRun
from asyncrl.planning.simulation import simulate
from asyncrl.planning.split import scaled_down

WORTH = 1.15
"""Speed-up that another bound must bring, to be suggested."""
NEARLY = 1.05
MOST_STALENESS = 32


@dataclass(frozen=True, slots=True)
class Tail:
    """The longest response against a step, and the bound that it asks for."""

    seconds: float
    """Time of the longest response, at the number of requests that usually run with it."""
    step_seconds: float
    better: int | None = None
    """A rollout.max_staleness that is much faster; None where there is none."""
    better_step_seconds: float | None = None

    def steps(self) -> float:
        return self.seconds / self.step_seconds


def find_tail(run: PlannedRun, lengths: Lengths) -> Tail:
    """Simulates a few dozen steps with each bound; smaller ones than the recipe's are not tried."""
    bound = run.queue.max_staleness
    seconds, step = _try(run, lengths, bound)
    tail = Tail(seconds, step)
    # A synchronous run wants no other bound, and an oversampled one parks its stragglers.
    is_wanted = bound == 0 or run.oversampling is not None or run.interrupt == "drain"
    if is_wanted or tail.steps() < bound:
        return tail
    tried = {bound: step}
    larger = bound
    while larger < MOST_STALENESS:
        larger = 2 * larger + 1
        tried[larger] = _try(run, lengths, larger)[1]
        if tried[larger] > 0.97 * min(time for key, time in tried.items() if key != larger):
            break
    best = min(tried.values())
    if step < WORTH * best:
        return tail
    better = next(key for key, time in sorted(tried.items()) if time <= NEARLY * best)
    return Tail(seconds, step, better, tried[better])


def tail_line(tail: Tail, run: PlannedRun) -> str:
    return (
        f"the longest response takes about {_time(tail.seconds)}, {tail.steps():.1f} steps of "
        f"{_time(tail.step_seconds)}; rollout.max_staleness is {run.queue.max_staleness}"
    )


def tail_warning(tail: Tail, run: PlannedRun) -> str | None:
    """Advice on what to change, where the bound starves the servers."""
    if tail.better is None or tail.better_step_seconds is None:
        return None
    bound = run.queue.max_staleness
    return (
        f"rollout.max_staleness {bound} starves the servers: {tail_line(tail, run).partition(';')[0]}, and "
        f"nothing new is admitted meanwhile. With rollout.max_staleness {tail.better} a step would take "
        f"about {_time(tail.better_step_seconds)}; rollout.mask_staleness {bound} then keeps older tokens "
        f"out of the loss."
    )


def _try(run: PlannedRun, lengths: Lengths, bound: int) -> tuple[float, float]:
    """(seconds of the longest response, seconds per step) under a bound."""
    steps = min(run.queue.num_steps, 4 * (bound + 2) + 8)
    limit = run.queue.abort_staleness
    changes = {"max_staleness": bound, "num_steps": max(steps, 1)}
    if limit is not None and limit >= bound:
        changes["abort_staleness"] = max(0, bound - 1)
    small, _ = scaled_down(run.with_queue(**changes))
    outcome = simulate(small, lengths)
    together = min(max(1, math.ceil(outcome.requests_per_server())), run.decode_slots)
    return lengths.longest() * run.costs.decode_latency(together), outcome.step_seconds()


def _time(seconds: float) -> str:
    if seconds >= 120:
        return f"{seconds / 60:.1f} min"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"
