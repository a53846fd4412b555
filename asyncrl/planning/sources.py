"""Sources of a simulation's costs and lengths: a run's folder, a file, a device's data sheet.

What a file states wins over what a run measured, and that over an estimate.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from asyncrl.model.folder import ModelShape
from asyncrl.planning.device import PlannedDevice, asked_device, planned_device
from asyncrl.planning.estimated import (
    MEAN_SHARE,
    Device,
    assumed_lengths,
    engine_cache_tokens,
    estimate_costs,
)
from asyncrl.planning.lengths import Lengths, LogNormalLengths
from asyncrl.planning.measured import can_be_measured, measure
from asyncrl.planning.prompts import PromptTokens, sampled_prompts
from asyncrl.planning.settings import Costs, Failures, PlannedRun
from asyncrl.planning.stated import Stated
from asyncrl.recipe import Recipe


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
    device: str | None = None,
    is_elsewhere: bool = False,
    stated: Stated | None = None,
    prompts: PromptTokens | None = None,
) -> Source:
    """Without a `device` the costs are those of this machine, or of a likely GPU where the plan
    `is_elsewhere`; without `prompts` the prompts are those of data.train, where it is here.

    Raises InputError for a device that has no data sheet, or a run that says too little.
    """
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
            f"prompts: {lengths.prompt_tokens:.0f} tokens (the mean of that run)",
            "training time per token falls with the number of trainer ranks, the rest of a step stays",
        ]
        if measured.recipe.evaluation.every_steps and not measured.recipe.evaluation.num_servers:
            assumptions.append("evaluations of the measured run shared its servers and count as slower ones")
    else:
        section = stated.lengths
        planned = (
            planned_device(recipe, is_elsewhere=is_elsewhere) if device is None else asked_device(device)
        )
        prompts = _prompts(recipe, section.prompt_tokens, prompts)
        lengths = assumed = assumed_lengths(
            recipe, mean_tokens=section.mean_tokens, spread=section.spread, prompt_tokens=prompts.mean
        )
        costs_of = _estimates(recipe, shape, lengths, planned.device)
        cache_tokens = engine_cache_tokens(shape, recipe, planned.device)
        assumptions = _words_of_assumed(
            planned, prompts, assumed, is_mean_stated=section.mean_tokens is not None
        )
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


def _prompts(recipe: Recipe, stated: float | None, given: PromptTokens | None) -> PromptTokens:
    if stated is not None:
        return PromptTokens(stated, "lengths.prompt_tokens of --costs")
    return sampled_prompts(recipe) if given is None else given


def _words_of_assumed(
    planned: PlannedDevice, prompts: PromptTokens, lengths: LogNormalLengths, *, is_mean_stated: bool
) -> list[str]:
    guess = f"{MEAN_SHARE:g} of rollout.max_new_tokens, since nothing was measured"
    whence = "lengths.mean_tokens of --costs" if is_mean_stated else guess
    why = prompts.origin if prompts.mean is not None else f"assumed, since {prompts.origin}"
    return [
        f"device: {planned.device.name} ({planned.origin})",
        f"prompts: {lengths.prompt_tokens:.0f} tokens ({why})",
        f"responses: log-normal with a mean of {lengths.mean_tokens:.0f} tokens ({whence}) and a spread of "
        f"{lengths.spread:g}, cut at {lengths.limit} (rollout.max_new_tokens)",
    ]


def find_likely_source(
    recipe: Recipe, shape: ModelShape, *, is_elsewhere: bool, prompts: PromptTokens | None = None
) -> Source:
    """The source when none is named: an earlier start's measurements where they suffice, else estimates."""
    folder = recipe.folder()
    if can_be_measured(folder):
        return find_source(recipe, shape, measured_run=folder)
    return find_source(recipe, shape, is_elsewhere=is_elsewhere, prompts=prompts)


def _estimates(recipe: Recipe, shape: ModelShape, lengths: Lengths, device: Device) -> Callable[[int], Costs]:
    return lambda ranks: estimate_costs(shape, recipe, lengths, device, num_ranks=ranks)


def _costs_by_ranks(costs: Costs, measured_ranks: int) -> Callable[[int], Costs]:
    per_token = costs.train_seconds_per_token * measured_ranks
    return lambda ranks: replace(costs, train_seconds_per_token=per_token / ranks)


def _with_stated(costs_of: Callable[[int], Costs], changes: dict[str, float]) -> Callable[[int], Costs]:
    origin = f"stated ({', '.join(changes)})"

    def stated(ranks: int) -> Costs:
        costs = costs_of(ranks)
        return replace(costs, **changes, origin=f"{origin}, else {costs.origin}")

    return stated
