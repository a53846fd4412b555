"""The forecast of a simulation, for people: `asyncrl plan --simulate`."""

from asyncrl.errors import InputError
from asyncrl.planning.outcome import Outcome
from asyncrl.planning.settings import PlannedRun
from asyncrl.planning.simulation import simulate
from asyncrl.planning.sources import Source
from asyncrl.planning.split import LARGEST_TRAJECTORIES, Split, best_splits, recommended
from asyncrl.system.rounding import as_percent

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
