"""The best split of a number of GPUs into servers and trainer ranks, for several batch sizes.

Each candidate is simulated, scaled down where it is large. Trainer ranks come in whole copies of the
recipe's layout (trainer.parallel), server GPUs in whole servers.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from asyncrl.errors import InputError
from asyncrl.planning.lengths import Lengths
from asyncrl.planning.outcome import Outcome
from asyncrl.planning.settings import Costs, PlannedRun
from asyncrl.planning.simulation import simulate
from asyncrl.recipe import Recipe

LARGEST_TRAJECTORIES = 1500
"""Most trajectories of a batch in a search: a larger one is scaled down."""
NUM_SPLITS = 5
"""Simulated per batch size, around the balance of both sides."""
BATCH_FACTORS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Factors on rollout.groups_per_batch."""
ENOUGH = 0.95
"""Share of the highest throughput that a smaller batch must reach to be preferred."""

CostsOf = Callable[[int], Costs]
"""Trainer ranks -> costs."""


@dataclass(frozen=True, slots=True)
class Split:
    """A split of all GPUs, and what it would do."""

    groups_per_batch: int
    num_servers: int
    num_ranks: int
    outcome: Outcome
    """Outcome for a part of the run where it is large."""

    def samples_per_second(self, samples_per_group: int) -> float:
        return self.groups_per_batch * samples_per_group / self.outcome.step_seconds()


def best_splits(
    recipe: Recipe, run: PlannedRun, lengths: Lengths, *, num_gpus: int, costs_of: CostsOf, num_steps: int
) -> list[Split]:
    """The best split for each batch size, smallest first, until more is no faster.

    Raises InputError where the GPUs hold no server and no trainer at once.
    """
    parallel = recipe.trainer.parallel
    unit = parallel.tensor * parallel.pipeline * parallel.context
    ranks_per_server = recipe.serving.tensor_parallel_size
    if num_gpus < unit + ranks_per_server:
        raise InputError(
            f"--gpus is {num_gpus}, but one server takes {ranks_per_server} and one copy of the trainer "
            f"{unit}. Name more GPUs, or lower serving.tensor_parallel_size or trainer.parallel."
        )
    found: list[Split] = []
    for factor in BATCH_FACTORS:
        groups = run.queue.groups_per_batch * factor
        several = [
            _try(run, lengths, groups, servers, copies * unit, costs_of, num_steps)
            for servers, copies in _candidates(
                run, lengths, groups, num_gpus, unit, ranks_per_server, costs_of
            )
        ]
        found.append(min(several, key=lambda split: split.outcome.step_seconds()))
        if len(found) > 2 and _rate(found[-1]) < 1.03 * _rate(found[-2]):
            break
    return found


def recommended(splits: Iterable[Split]) -> Split:
    """The smallest batch whose throughput is nearly the highest: fewer samples per step, less staleness."""
    splits = list(splits)
    most = max(map(_rate, splits))
    return next(split for split in splits if _rate(split) >= ENOUGH * most)


def scaled_down(run: PlannedRun) -> tuple[PlannedRun, float]:
    """A run with fewer servers and groups that tells the same per server, and its share; see
    `PlannedRun.scaled`."""
    trajectories = run.queue.groups_per_batch * run.queue.samples_per_group
    share = LARGEST_TRAJECTORIES / trajectories
    if share >= 1.0:
        return run, 1.0
    small = run.scaled(share)
    return small, small.num_servers / run.num_servers


def _rate(split: Split) -> float:
    return split.groups_per_batch / split.outcome.step_seconds()


def _try(
    run: PlannedRun,
    lengths: Lengths,
    groups: int,
    servers: int,
    ranks: int,
    costs_of: CostsOf,
    num_steps: int,
) -> Split:
    planned = replace(run.with_queue(groups_per_batch=groups, num_steps=num_steps), num_servers=servers)
    small, _ = scaled_down(replace(planned, costs=costs_of(ranks)))
    return Split(groups, servers, ranks, simulate(small, lengths))


def _candidates(
    run: PlannedRun,
    lengths: Lengths,
    groups: int,
    num_gpus: int,
    unit: int,
    ranks_per_server: int,
    costs_of: CostsOf,
) -> Iterator[tuple[int, int]]:
    """(servers, copies of the trainer) around the balance, where both sides would take the same time."""
    trajectories = groups * run.queue.samples_per_group
    mean = lengths.mean()

    def imbalance(copies: int) -> float:
        costs, servers = costs_of(copies * unit), (num_gpus - copies * unit) // ranks_per_server
        training = costs.training(trajectories * mean) + costs.publish_seconds
        in_flight = trajectories * run.queue.batches_ahead() / servers
        requests = max(1.0, min(in_flight, run.max_running_requests, run.decode_slots))
        return training - trajectories * mean * costs.decode_latency(requests) / (servers * requests)

    most = (num_gpus - ranks_per_server) // unit
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if imbalance(middle) > 0 else (low, middle)
    step = max(1, math.ceil(0.15 * low))
    places = range(low - NUM_SPLITS // 2 * step, low + (NUM_SPLITS // 2 + 1) * step, step)
    for copies in sorted({min(max(1, place), most) for place in places}):
        yield (num_gpus - copies * unit) // ranks_per_server, copies
