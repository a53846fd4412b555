"""Divisions of GPUs between rollout servers and trainer, and of the ranks among the axes of a model.

Owns which are legal and which is best; whether one fits is the caller's question (`Fits`), as `asyncrl plan`
answers it. `settings` are the keys of a recipe. Up to a machine's GPUs both sides may also share all of them.
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from asyncrl.model.shape import ModelShape
from asyncrl.readers.planning.estimated import Device, engine_cache_tokens, estimate_costs
from asyncrl.readers.planning.settings import Lengths, training_tokens
from asyncrl.recipe import Recipe

GPUS_PER_MACHINE = 8
"""Ranks that share a matrix, and those of one server, stay within a machine."""
WIDEST = 8
"""Largest tensor size that is tried."""
DEEPEST = 16
"""Most pipeline stages that are tried."""


@dataclass(frozen=True, slots=True)
class Division:
    """The GPUs of either side, and how the trainer divides its model among its own."""

    num_servers: int
    server_ranks: int
    """GPUs of each server."""
    num_ranks: int
    tensor: int = 1
    pipeline: int = 1
    expert: int = 1
    is_colocated: bool = False
    """Servers share the GPUs of the trainer, and sleep while it steps."""

    def num_gpus(self) -> int:
        servers = 0 if self.is_colocated else self.num_servers * self.server_ranks
        return self.num_ranks + servers

    def copies(self) -> int:
        """Data-parallel copies of the model."""
        return self.num_ranks // (self.tensor * self.pipeline)

    def settings(self) -> dict[str, Any]:
        """Keys of a recipe -> values, those of the optimizer's sharding included."""
        return {
            "placement.colocated": self.is_colocated,
            "serving.num_servers": self.num_servers,
            "serving.tensor_parallel_size": self.server_ranks,
            "trainer.num_processes": self.num_ranks,
            "trainer.parallel.tensor": self.tensor,
            "trainer.parallel.sequence_parallel": self.tensor > 1,
            "trainer.parallel.pipeline": self.pipeline,
            "trainer.parallel.expert": self.expert,
            "trainer.parallel.distributed_optimizer": True,
        }


Fits = Callable[[Division], bool]
Seconds = Callable[[Division], float]
"""Estimated time of a step."""


@functools.lru_cache(maxsize=1024)
def grids(shape: ModelShape, num_ranks: int) -> tuple[tuple[int, int, int], ...]:
    """(tensor, pipeline, expert) of every legal grid of `num_ranks`, those with the fewest messages first:
    data parallelism before tensor before pipeline, and experts dealt among as many ranks as can be."""
    found = []
    for tensor, pipeline in itertools.product(_powers(WIDEST), _powers(DEEPEST)):
        if num_ranks % (tensor * pipeline) or shape.num_layers % pipeline:
            continue
        divided = (shape.num_heads, shape.num_kv_heads, shape.ffn_size, shape.shared_expert_size)
        if any(size % tensor for size in divided):
            continue
        experts = [1]
        if shape.num_experts is not None:
            stage = num_ranks // pipeline
            experts = [n for n in range(stage, 0, -1) if stage % n == 0 and shape.num_experts % n == 0]
        found += [(tensor, pipeline, expert) for expert in experts]
    return tuple(sorted(found, key=lambda grid: (grid[0] * grid[1], grid[1], -grid[2])))


def divisions(shape: ModelShape, num_gpus: int) -> Iterator[Division]:
    """Every legal division of exactly `num_gpus`, servers and trainer apart, then shared; small servers
    first: each has a cache of its own, and what several ranks compute together waits for messages."""
    for server_ranks in server_sizes(shape):
        for ranks in _rank_counts(num_gpus):
            num_servers = (num_gpus - ranks) // server_ranks
            if num_servers * server_ranks == num_gpus - ranks and num_servers:
                for tensor, pipeline, expert in grids(shape, ranks):
                    yield Division(num_servers, server_ranks, ranks, tensor, pipeline, expert)
    if num_gpus <= GPUS_PER_MACHINE:
        for server_ranks in server_sizes(shape):
            if num_gpus % server_ranks == 0:
                for tensor, pipeline, expert in grids(shape, num_gpus):
                    servers = num_gpus // server_ranks
                    yield Division(servers, server_ranks, num_gpus, tensor, pipeline, expert, True)


def choose(shape: ModelShape, num_gpus: int, fits: Fits, seconds: Seconds) -> Division | None:
    """The fastest of the smallest servers that fit; None where nothing does. Apart before shared: servers
    that never sleep are what asynchronous training is for. For each number of ranks the first grid that fits
    is taken."""
    order = itertools.groupby(divisions(shape, num_gpus), lambda each: (each.is_colocated, each.server_ranks))
    for _, alike in order:
        by_ranks = itertools.groupby(alike, lambda each: each.num_ranks)
        firsts = [first for _, same in by_ranks if (first := next(filter(fits, same), None)) is not None]
        if firsts:
            return min(firsts, key=lambda each: (seconds(each), each.num_ranks))
    return None


def fewest_gpus(shape: ModelShape, fits: Fits, *, above: int, most: int) -> Division | None:
    """A division of the fewest GPUs, more than `above` and up to `most`, that fits: whole machines from one
    on. None where none does."""
    for num_gpus in range(above + 1, most + 1):
        if num_gpus > GPUS_PER_MACHINE and num_gpus % GPUS_PER_MACHINE:
            continue
        found = next(filter(fits, divisions(shape, num_gpus)), None)
        if found is not None:
            return found
    return None


def step_seconds(
    shape: ModelShape, recipe: Recipe, division: Division, lengths: Lengths, device: Device
) -> float:
    """Time of a step in the steady state, where both sides work: the longer of the two; where they share
    GPUs, their sum. Without the waits for stragglers and batches that `asyncrl plan --simulate` counts."""
    rollout, costs = (
        recipe.rollout,
        estimate_costs(shape, recipe, lengths, device, num_ranks=division.num_ranks),
    )
    responses = rollout.groups_per_batch * rollout.samples_per_group
    generated = responses * lengths.mean()
    cache = recipe.serving.max_total_tokens or engine_cache_tokens(shape, recipe, device)
    in_flight = responses * (1 + rollout.max_staleness) / division.num_servers
    requests = min(recipe.serving.max_running_requests, in_flight, max(1.0, cache / lengths.tokens_held))
    generating = generated * costs.decode_latency(requests) / (requests * division.num_servers)
    training = costs.training(
        training_tokens(
            rollout.groups_per_batch,
            samples_per_group=rollout.samples_per_group,
            prompt_tokens=lengths.prompt_tokens,
            response_tokens=generated,
        )
    )
    if division.is_colocated:
        return generating + training + costs.publish_seconds
    return max(generating, training + costs.publish_seconds)


def server_sizes(shape: ModelShape) -> list[int]:
    """Tensor-parallel sizes that a server can have: SGLang divides heads, and repeats key-value heads where
    there are fewer."""
    return [size for size in _powers(GPUS_PER_MACHINE) if shape.num_heads % size == 0]


def _rank_counts(num_gpus: int) -> Sequence[int]:
    """Trainer ranks beside one server at least; whole machines where there are several."""
    if num_gpus <= GPUS_PER_MACHINE:
        return range(1, num_gpus)
    return range(GPUS_PER_MACHINE, num_gpus, GPUS_PER_MACHINE)


def _powers(most: int) -> Iterator[int]:
    size = 1
    while size <= most:
        yield size
        size *= 2
