"""Long responses against the staleness bound: whether rollout.max_staleness starves the servers.

A group must be trained within max_staleness steps of its admission. While the longest response takes more
steps than that, the trainer waits for it, and the bound keeps the servers from beginning anything else.
"""

from asyncrl.planning.lengths import Lengths
from asyncrl.planning.settings import PlannedRun
from asyncrl.planning.simulation import simulate
from asyncrl.planning.split import LARGEST_TRAJECTORIES

WORTH = 1.15
"""Speed-up that another bound must bring, to be suggested."""
NEARLY = 1.05
MOST_STALENESS = 32


def tail_lines(run: PlannedRun, lengths: Lengths) -> list[str]:
    """The longest response against a step, and where it starves the servers a warning with a better bound."""
    bound = run.queue.max_staleness
    seconds, step = _try(run, lengths, bound)
    words = f"the longest response takes about {_time(seconds)}, {seconds / step:.1f} steps of {_time(step)}"
    line = f"tail       {words}; rollout.max_staleness is {bound}"
    # A synchronous run wants no other bound, and an oversampled one parks its stragglers.
    is_wanted = bound == 0 or run.oversampling is not None or run.interrupt == "drain"
    if is_wanted or seconds < bound * step:
        return [line]
    better = _better_bound(run, lengths, step)
    if better is None:
        return [line]
    larger, faster = better
    return [
        line,
        f"WARNING: rollout.max_staleness {bound} starves the servers: {words}, and nothing new is admitted "
        f"meanwhile. With rollout.max_staleness {larger} a step would take about {_time(faster)}; "
        f"rollout.mask_staleness {bound} then keeps older tokens out of the loss.",
    ]


def _better_bound(run: PlannedRun, lengths: Lengths, step_seconds: float) -> tuple[int, float] | None:
    """The smallest of some larger bounds that is nearly as fast as any, and its seconds per step; None where
    none is much faster than `step_seconds`."""
    tried: dict[int, float] = {}
    bound, best = run.queue.max_staleness, step_seconds
    while bound < MOST_STALENESS:
        bound = 2 * bound + 1
        tried[bound] = _try(run, lengths, bound)[1]
        if tried[bound] > 0.97 * best:
            break
        best = tried[bound]
    best = min(tried.values(), default=step_seconds)
    if step_seconds < WORTH * best:
        return None
    return next((bound, seconds) for bound, seconds in tried.items() if seconds <= NEARLY * best)


def _try(run: PlannedRun, lengths: Lengths, bound: int) -> tuple[float, float]:
    """(seconds of the longest response among as many requests as usually run, seconds per step)."""
    steps = max(1, min(run.queue.num_steps, 4 * (bound + 2) + 8))
    small, _ = run.with_queue(max_staleness=bound, num_steps=steps).scaled_to(LARGEST_TRAJECTORIES)
    outcome = simulate(small, lengths)
    together = min(max(1.0, outcome.requests_per_server()), run.decode_slots)
    return lengths.longest * run.costs.decode_latency(together), outcome.step_seconds()


def _time(seconds: float) -> str:
    if seconds >= 120:
        return f"{seconds / 60:.1f} min"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"
