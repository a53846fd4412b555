"""Sources of a simulation's costs and lengths: a run's folder, a file, a device's data sheet.

What a file states wins over what a run measured, and that over an estimate.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from asyncrl.errors import InputError
from asyncrl.model.folder import ModelShape
from asyncrl.planning.estimated import DEVICES, assumed_lengths, engine_cache_tokens, estimate_costs
from asyncrl.planning.lengths import Lengths
from asyncrl.planning.measured import can_be_measured, measure
from asyncrl.planning.settings import Costs, Failures, PlannedRun
from asyncrl.planning.stated import Stated
from asyncrl.recipe import Recipe

LIKELY_GPU = "H100"


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
    measured_run: Path | None = None,
    device: str = LIKELY_GPU,
    stated: Stated | None = None,
    prompt_tokens: float | None = None,
) -> Source:
    """Raises InputError for an unknown device, or a run that says too little."""
    stated = stated or Stated()
    no_signal = 0.0
    costs_of: Callable[[int], Costs]
    lengths: Lengths
    cache_tokens = math.inf
    if measured_run is not None:
        measured = measure(measured_run)
        lengths, no_signal = measured.lengths, measured.no_signal_share
        costs_of = _costs_by_ranks(measured.costs, measured.recipe.trainer.num_processes)
        assumptions = [
            f"lengths are those of {measured_run}, drawn by the version that admitted them; their mean is "
            f"{lengths.mean():.0f} tokens, the longest {lengths.longest()}",
            "training time per token falls with the number of trainer ranks, the rest of a step stays",
        ]
        if measured.recipe.evaluation.every_steps and not measured.recipe.evaluation.num_servers:
            assumptions.append("evaluations of the measured run shared its servers and count as slower ones")
    else:
        section = stated.lengths
        lengths = assumed = assumed_lengths(
            recipe,
            mean_tokens=section.mean_tokens,
            spread=section.spread,
            prompt_tokens=prompt_tokens if section.prompt_tokens is None else section.prompt_tokens,
        )
        costs_of = _estimates(recipe, shape, lengths, device)
        cache_tokens = engine_cache_tokens(shape, recipe, DEVICES[device])
        assumptions = [
            f"lengths are log-normal with a mean of {assumed.mean_tokens:.0f} tokens and a spread of "
            f"{assumed.spread:g}, cut at {assumed.limit}; prompts have {assumed.prompt_tokens:.0f} tokens"
        ]
    changes = stated.costs.model_dump(exclude_none=True)
    if changes:
        costs_of = _with_stated(costs_of, changes)
    assumptions.append("evaluations during training are left out")
    costs = costs_of(recipe.trainer.num_processes)
    run = PlannedRun.of(
        recipe,
        costs,
        tokens_held=lengths.tokens_held(),
        cache_tokens=cache_tokens,
        no_signal_share=no_signal,
    )
    run = replace(run, failures=Failures(**stated.failures.model_dump()))
    return Source(recipe, run, lengths, costs_of, [f"costs are {costs.origin}", *assumptions])


def find_likely_source(
    recipe: Recipe, shape: ModelShape, *, on_gpu: bool, prompt_tokens: float | None = None
) -> Source:
    """The source when none is named: an earlier start's measurements where they suffice, else estimates."""
    folder = recipe.folder()
    if can_be_measured(folder):
        return find_source(recipe, shape, measured_run=folder)
    device = LIKELY_GPU if on_gpu else "CPU"
    return find_source(recipe, shape, device=device, prompt_tokens=prompt_tokens)


def _estimates(recipe: Recipe, shape: ModelShape, lengths: Lengths, device: str) -> Callable[[int], Costs]:
    if device not in DEVICES:
        raise InputError(f"--device {device} is unknown. Known: {', '.join(DEVICES)}.")
    return lambda ranks: estimate_costs(shape, recipe, lengths, DEVICES[device], num_ranks=ranks)


def _costs_by_ranks(costs: Costs, measured_ranks: int) -> Callable[[int], Costs]:
    per_token = costs.train_seconds_per_token * measured_ranks
    return lambda ranks: replace(costs, train_seconds_per_token=per_token / ranks)


def _with_stated(costs_of: Callable[[int], Costs], changes: dict[str, float]) -> Callable[[int], Costs]:
    origin = f"stated ({', '.join(changes)})"

    def stated(ranks: int) -> Costs:
        costs = costs_of(ranks)
        return replace(costs, **changes, origin=f"{origin}, else {costs.origin}")

    return stated
