"""The forecast of a simulation, for people: `asyncrl plan --simulate`."""

from asyncrl.errors import InputError
from asyncrl.planning.outcome import Outcome
from asyncrl.planning.settings import PlannedRun
from asyncrl.planning.simulation import simulate
from asyncrl.planning.sources import Source
from asyncrl.planning.split import Split, best_splits, recommended, scaled_down
from asyncrl.planning.tail import find_tail, tail_line, tail_warning
from asyncrl.system.rounding import as_percent

LARGEST_SIMULATED = 2_000_000
"""Most trajectories of one simulation: about 20 s. With more, a part of servers and groups is simulated."""
SEARCH_STEPS = 24
"""Steps of each candidate split; more where the staleness bound needs them."""


def forecast(source: Source, *, num_gpus: int | None = None, num_steps: int | None = None) -> str:
    """All lines. Raises InputError where `num_gpus` cannot hold the recipe's layout, or sides take turns."""
    if source.recipe.placement.colocated:
        raise InputError(
            "placement.colocated is true, but a simulation has servers that generate while the trainer "
            "steps. Set placement.colocated to false to simulate the recipe on separate GPUs."
        )
    run = source.run
    if num_steps is not None:
        run = run.with_queue(num_steps=num_steps)
    lines = [f"simulation {source.assumptions[0]}"]
    lines += [f"  {assumption}" for assumption in source.assumptions[1:]]
    if num_gpus is not None:
        lines += _split_lines(source, run, num_gpus)
        return "\n".join(lines)
    small, share = _affordable(run)
    outcome = simulate(small, source.lengths)
    lines += _outcome_lines(run, outcome, share)
    return "\n".join([*lines, *_tail_lines(source, run)])


def describe_tail(source: Source) -> list[str]:
    """The longest response against a step, from where that is known, and a warning where it matters. Nothing
    where servers generate nothing during a step."""
    if source.recipe.placement.colocated:
        return []
    return [*_tail_lines(source, source.run), *(f"  {assumption}" for assumption in source.assumptions)]


def _tail_lines(source: Source, run: PlannedRun) -> list[str]:
    tail = find_tail(run, source.lengths)
    warning = tail_warning(tail, run)
    return [f"tail       {tail_line(tail, run)}", *([] if warning is None else [f"WARNING: {warning}"])]


def _affordable(run: PlannedRun) -> tuple[PlannedRun, float]:
    total = run.queue.groups_per_batch * run.queue.samples_per_group * run.queue.num_steps
    return (run, 1.0) if total <= LARGEST_SIMULATED else scaled_down(run)


def _outcome_lines(run: PlannedRun, outcome: Outcome, share: float) -> list[str]:
    part = "" if share == 1.0 else f", of {as_percent(share, 1)} of servers and groups"
    requests = outcome.requests_per_server()
    lines = [
        f"forecast   {len(outcome.steps)} steps{part}; the steady state:",
        f"  step         {outcome.step_seconds():.3g} s, {outcome.steps_per_hour():,.0f} steps per hour",
        f"  trainer      idle {as_percent(outcome.trainer_idle())}",
        f"  servers      idle {as_percent(outcome.rollout_idle())}; {requests:.0f} requests on each at once, "
        f"of {run.max_running_requests} (serving.max_running_requests)",
        f"  tokens       {outcome.tokens_per_second() / share:,.0f} generated per second, "
        f"{outcome.trained_tokens_per_second() / share:,.0f} trained",
        f"  staleness    mean {outcome.staleness_mean():.2f}, at most {outcome.staleness_max()}: "
        f"{_staleness(outcome)}",
    ]
    if run.decode_slots < requests:
        lines.append(
            f"  cache        holds {run.decode_slots:.0f} requests of usual length per server: more take "
            f"turns. Raise serving.max_total_tokens."
        )
    if outcome.num_server_failures or outcome.num_trainer_failures:
        lines.append(
            f"  failures     {outcome.num_server_failures} of servers, {outcome.num_trainer_failures} of "
            f"the trainer"
        )
    return lines


def _staleness(outcome: Outcome) -> str:
    """Versions and the share of trained tokens that are that old."""
    total = max(1, sum(outcome.staleness.values()))
    return ", ".join(
        f"{age}: {as_percent(count / total)}" for age, count in sorted(outcome.staleness.items())
    )


def _split_lines(source: Source, run: PlannedRun, num_gpus: int) -> list[str]:
    samples = run.queue.samples_per_group
    splits = best_splits(
        source.recipe,
        run,
        source.lengths,
        num_gpus=num_gpus,
        costs_of=source.costs_of,
        num_steps=min(run.queue.num_steps, max(SEARCH_STEPS, 4 * (run.queue.max_staleness + 2))),
    )
    best = recommended(splits)
    lines = [
        f"split      of {num_gpus:,} GPUs, the best for each batch size; * is the smallest one that is "
        f"nearly as fast as any",
        "    groups  servers  ranks  step       steps/h  samples/s  trainer idle  servers idle  staleness",
    ]
    lines += [_split_line(split, samples, is_best=split is best) for split in splits]
    per_server = source.recipe.serving.tensor_parallel_size
    lines.append(
        f"           rollout.groups_per_batch={best.groups_per_batch} serving.num_servers={best.num_servers} "
        f"({best.num_servers * per_server} GPUs) trainer.num_processes={best.num_ranks}"
    )
    return lines


def _split_line(split: Split, samples: int, *, is_best: bool) -> str:
    outcome = split.outcome
    return (
        f"  {'*' if is_best else ' '} {split.groups_per_batch:6d}  {split.num_servers:7d}  "
        f"{split.num_ranks:5d}  {outcome.step_seconds():7.4g} s  {outcome.steps_per_hour():7.0f}  "
        f"{split.samples_per_second(samples):9.1f}  {as_percent(outcome.trainer_idle()):>12}  "
        f"{as_percent(outcome.rollout_idle()):>12}  {outcome.staleness_mean():4.1f}, at most "
        f"{outcome.staleness_max()}"
    )
