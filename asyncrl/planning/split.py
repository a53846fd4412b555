"""The best split of a number of GPUs into servers and trainer ranks, for several batch sizes.

Trainer ranks come in whole copies of the recipe's layout (trainer.parallel), server GPUs in whole servers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from asyncrl.errors import InputError
from asyncrl.planning.outcome import Outcome
from asyncrl.planning.settings import PlannedRun
from asyncrl.planning.simulation import simulate
from asyncrl.planning.sources import Source

LARGEST_TRAJECTORIES = 1500
"""Most trajectories of a simulated batch: a larger run is scaled down."""
BATCH_FACTORS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Factors on rollout.groups_per_batch."""
FASTER = 1.03
"""Speed-up that a larger batch must bring, for one larger still to be tried."""
ENOUGH = 0.95
"""Share of the highest throughput that a smaller batch must reach to be preferred."""


@dataclass(frozen=True, slots=True)
class Split:
    """A split of all GPUs, and what it would do."""

    groups_per_batch: int
    num_servers: int
    num_ranks: int
    outcome: Outcome
    """Outcome for a part of the run where it is large."""

    def groups_per_second(self) -> float:
        return self.groups_per_batch / self.outcome.step_seconds()


def best_splits(source: Source, run: PlannedRun, *, num_gpus: int) -> list[Split]:
    """The best split for each batch size, smallest first, until more is no faster.

    Raises InputError where the GPUs hold no server and no trainer at once.
    """
    parallel = source.recipe.trainer.parallel
    unit = parallel.tensor * parallel.pipeline * parallel.context
    per_server = source.recipe.serving.tensor_parallel_size
    if num_gpus < unit + per_server:
        raise InputError(
            f"--gpus is {num_gpus}, but one server takes {per_server} and one copy of the trainer "
            f"{unit}. Name more GPUs, or lower serving.tensor_parallel_size or trainer.parallel."
        )
    found: list[Split] = []
    for factor in BATCH_FACTORS:
        of_size = run.with_queue(groups_per_batch=run.queue.groups_per_batch * factor)
        found.append(_best_split(source, of_size, num_gpus, unit, per_server))
        if len(found) > 2 and found[-1].groups_per_second() < FASTER * found[-2].groups_per_second():
            break
    return found


def recommended(splits: Sequence[Split]) -> Split:
    """The smallest batch whose throughput is nearly the highest: fewer samples per step, less staleness."""
    most = max(split.groups_per_second() for split in splits)
    return next(split for split in splits if split.groups_per_second() >= ENOUGH * most)


def _best_split(source: Source, run: PlannedRun, num_gpus: int, unit: int, per_server: int) -> Split:
    """Halves the range of trainer copies until both sides wait equally."""
    tried: list[Split] = []
    low, high = 1, (num_gpus - per_server) // unit
    while low <= high:
        copies = (low + high) // 2
        ranks, servers = copies * unit, (num_gpus - copies * unit) // per_server
        planned = replace(run, num_servers=servers, costs=source.costs_of(ranks))
        outcome = simulate(planned.scaled_to(LARGEST_TRAJECTORIES)[0], source.lengths)
        tried.append(Split(run.queue.groups_per_batch, servers, ranks, outcome))
        if outcome.trainer_idle() > outcome.rollout_idle():
            high = copies - 1
        else:
            low = copies + 1
    return min(tried, key=lambda split: split.outcome.step_seconds())
