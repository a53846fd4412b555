"""The forecast of a simulation, for people: `asyncrl plan --simulate`. Costs come from a device's data sheet,
response lengths are assumed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from asyncrl.errors import InputError
from asyncrl.model.shape import ModelShape
from asyncrl.readers.planning.estimated import (
    MEAN_SHARE,
    SPREAD,
    assumed_lengths,
    engine_cache_tokens,
    estimate_costs,
    find_device,
)
from asyncrl.readers.planning.settings import Costs, Lengths, Outcome, PlannedPilots, PlannedRun, plan_pilots
from asyncrl.readers.planning.simulation import simulate
from asyncrl.recipe import Recipe
from asyncrl.system.words import as_percent

PROMPT_TOKENS = 256.0
"""Assumed where nothing is known."""
NO_EVALUATIONS = "evaluations, rollout.abort_staleness and failures are left out"


@dataclass(frozen=True, slots=True)
class Source:
    """All that a simulation of a recipe needs."""

    recipe: Recipe
    run: PlannedRun
    lengths: Lengths
    costs_of: Callable[[int], Costs]
    """Trainer ranks -> costs."""
    assumptions: list[str]
    """A sentence each."""


def find_source(
    recipe: Recipe,
    shape: ModelShape,
    *,
    device: str | None = None,
    is_elsewhere: bool = False,
    longest_prompt: int | None = None,
    pass_rates: str | None = None,
) -> Source:
    """The costs are those of `device`, by default of this machine's GPU, or of a likely one where it has none
    or the plan `is_elsewhere`; prompts are as long as the longest one, where that is known. Pilots
    are judged by the rows of the file `pass_rates`; without one, all pass rates are equally likely.

    Raises InputError for a device that has no data sheet, and for a file that has no pass rates.
    """
    planned, why = find_device(recipe, name=device, is_elsewhere=is_elsewhere)
    lengths = assumed_lengths(recipe, prompt_tokens=longest_prompt or PROMPT_TOKENS)

    def costs_of(num_ranks: int) -> Costs:
        return estimate_costs(shape, recipe, lengths, planned, num_ranks=num_ranks)

    costs, limit = costs_of(recipe.trainer.num_processes), recipe.rollout.max_new_tokens
    cache_tokens = engine_cache_tokens(shape, recipe, planned)
    pilots = plan_pilots(recipe, pass_rates)
    run = PlannedRun.of(
        recipe, costs, tokens_held=lengths.tokens_held, cache_tokens=cache_tokens, pilots=pilots
    )
    known = "the longest one" if longest_prompt else "assumed; --longest-prompt says how many"
    assumptions = [
        f"costs are {costs.origin}",
        f"device: {planned.name} ({why})",
        f"prompts: {lengths.prompt_tokens:.0f} tokens ({known})",
        f"responses: log-normal with a mean of {MEAN_SHARE:g} of rollout.max_new_tokens and a spread "
        f"of {SPREAD:g}, cut at {limit} (rollout.max_new_tokens)",
        *([] if pilots is None else [_pilots_in_words(pilots, pass_rates)]),
        NO_EVALUATIONS,
    ]
    return Source(recipe, run, lengths, costs_of, assumptions)


def _pilots_in_words(pilots: PlannedPilots, path: str | None) -> str:
    rates = (
        "all pass rates equally likely (assumed; --pass-rates names measured ones)"
        if path is None
        else f"pass rates of {len(pilots.rates):,} rows of {path}"
    )
    dropped = "; groups without two rewards are dropped" if pilots.max_dropped_in_a_row else ""
    return (
        f"pilots: {pilots.num_pilot} of {pilots.num_samples} responses, then the others by "
        f"rollout.pilot_min_chance {pilots.min_chance:g}; {rates}, of rows without a record{dropped}"
    )


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
    """The best split for each batch size, smallest first, until more is no faster. Trainer ranks come in
    whole copies of the recipe's layout (trainer.parallel), server GPUs in whole servers.

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


MOST_STEPS = 200
"""Steps simulated unless `--steps` says more: the steady state needs a few times rollout.max_staleness."""
SEARCH_STEPS = 24
"""Steps of each candidate split; more where the staleness bound needs them."""


def forecast(source: Source, *, num_gpus: int | None = None, num_steps: int | None = None) -> str:
    """All lines. Raises InputError where `num_gpus` cannot hold the recipe's layout, or sides take turns."""
    if source.recipe.placement.colocated:
        raise InputError(
            "placement.colocated is true, but a simulation has servers that generate while the trainer "
            "steps. Set placement.colocated to false to simulate the recipe on separate GPUs."
        )
    run, bound = source.run, source.run.queue.max_staleness
    run = run.with_queue(num_steps=num_steps or min(run.queue.num_steps, MOST_STEPS))
    lines = [f"simulation {source.assumptions[0]}"]
    lines += [f"  {assumption}" for assumption in source.assumptions[1:]]
    if num_gpus is not None:
        steps = min(run.queue.num_steps, max(SEARCH_STEPS, 4 * (bound + 2)))
        lines += _split_lines(source, best_splits(source, run.with_queue(num_steps=steps), num_gpus=num_gpus))
        return "\n".join(lines)
    small, share = run.scaled_to(LARGEST_TRAJECTORIES)
    lines += _outcome_lines(run, simulate(small, source.lengths), share)
    return "\n".join(lines)


def _outcome_lines(run: PlannedRun, outcome: Outcome, share: float) -> list[str]:
    part = "" if share == 1.0 else f", of {as_percent(share, 1)} of servers and groups"
    requests, step = outcome.requests_per_server(), outcome.step_seconds()
    ages = ", ".join(f"{age}: {as_percent(part)}" for age, part in outcome.staleness().items())
    lines = [
        f"forecast   {len(outcome.steps)} steps{part}; the steady state:",
        f"  step         {step:.3g} s, {3600.0 / step:,.0f} steps per hour",
        f"  trainer      idle {as_percent(outcome.trainer_idle())}",
        f"  servers      idle {as_percent(outcome.rollout_idle())}; {requests:.0f} requests on each at once, "
        f"of {run.max_running_requests} (serving.max_running_requests)",
        f"  tokens       {outcome.tokens_per_second() / share:,.0f} generated per second, "
        f"{outcome.trained_tokens_per_second() / share:,.0f} trained",
        f"  staleness    mean {outcome.staleness_mean():.2f}, at most {outcome.staleness_max()}: {ages}",
    ]
    if run.pilots is not None:
        lines.append(
            f"  pilots       {outcome.responses_per_group():.1f} responses per trained group, of "
            f"{run.pilots.num_samples} (rollout.samples_per_group)"
        )
    if run.decode_slots < requests:
        lines.append(
            f"  cache        holds {run.decode_slots:.0f} requests of usual length per server: more take "
            f"turns. Raise serving.max_total_tokens."
        )
    return lines


def _split_lines(source: Source, splits: list[Split]) -> list[str]:
    best, samples = recommended(splits), source.run.queue.samples_per_group
    per_server = source.recipe.serving.tensor_parallel_size
    num_gpus = best.num_servers * per_server
    return [
        "split      the best for each batch size; * is the smallest one that is nearly as fast as any",
        "    groups  servers  ranks  step       steps/h  samples/s  trainer idle  servers idle  staleness",
        *(_split_line(split, samples, is_best=split is best) for split in splits),
        f"           rollout.groups_per_batch={best.groups_per_batch} serving.num_servers={best.num_servers} "
        f"({num_gpus} GPUs) trainer.num_processes={best.num_ranks}",
    ]


def _split_line(split: Split, samples: int, *, is_best: bool) -> str:
    outcome, step = split.outcome, split.outcome.step_seconds()
    return (
        f"  {'*' if is_best else ' '} {split.groups_per_batch:6d}  {split.num_servers:7d}  "
        f"{split.num_ranks:5d}  {step:7.4g} s  {3600.0 / step:7.0f}  "
        f"{samples * split.groups_per_second():9.1f}  {as_percent(outcome.trainer_idle()):>12}  "
        f"{as_percent(outcome.rollout_idle()):>12}  {outcome.staleness_mean():4.1f}, at most "
        f"{outcome.staleness_max()}"
    )
