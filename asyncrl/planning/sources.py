"""Sources of a simulation's costs and lengths: a run's folder, else a device's data sheet."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from asyncrl.model.folder import ModelShape
from asyncrl.planning.devices import find_device
from asyncrl.planning.estimated import (
    MEAN_SHARE,
    SPREAD,
    assumed_lengths,
    engine_cache_tokens,
    estimate_costs,
)
from asyncrl.planning.lengths import Lengths
from asyncrl.planning.measured import can_be_measured, measure
from asyncrl.planning.settings import Costs, PlannedRun
from asyncrl.recipe import Recipe

PROMPT_TOKENS = 256.0
"""Assumed where nothing is known."""
NO_EVALUATIONS = "evaluations during training, rollout.abort_staleness and failures are left out"


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
    longest_prompt: int | None = None,
) -> Source:
    """Without a `measured_run` the costs are those of `device`, by default of this machine, or of a likely
    GPU where the plan `is_elsewhere`; prompts are then as long as the longest one, where that is known.

    Raises InputError for a device that has no data sheet, or a run that says too little.
    """
    if measured_run is not None:
        return _measured_source(recipe, measured_run)
    planned, why = find_device(recipe, name=device, is_elsewhere=is_elsewhere)
    lengths = assumed_lengths(recipe, prompt_tokens=longest_prompt or PROMPT_TOKENS)

    def costs_of(num_ranks: int) -> Costs:
        return estimate_costs(shape, recipe, lengths, planned, num_ranks=num_ranks)

    costs, limit = costs_of(recipe.trainer.num_processes), recipe.rollout.max_new_tokens
    cache_tokens = engine_cache_tokens(shape, recipe, planned)
    run = PlannedRun.of(recipe, costs, tokens_held=lengths.tokens_held, cache_tokens=cache_tokens)
    known = "the longest one" if longest_prompt else "assumed; --longest-prompt says how many"
    assumptions = [
        f"costs are {costs.origin}",
        f"device: {planned.name} ({why})",
        f"prompts: {lengths.prompt_tokens:.0f} tokens ({known})",
        f"responses: log-normal with a mean of {MEAN_SHARE:g} of rollout.max_new_tokens, since nothing was "
        f"measured, and a spread of {SPREAD:g}, cut at {limit} (rollout.max_new_tokens)",
        NO_EVALUATIONS,
    ]
    return Source(recipe, run, lengths, costs_of, assumptions)


def find_likely_source(
    recipe: Recipe, shape: ModelShape, *, is_elsewhere: bool, longest_prompt: int | None = None
) -> Source:
    """The source when none is named: an earlier start's measurements where they suffice, else estimates."""
    if can_be_measured(recipe.folder()):
        return find_source(recipe, shape, measured_run=recipe.folder())
    return find_source(recipe, shape, is_elsewhere=is_elsewhere, longest_prompt=longest_prompt)


def _measured_source(recipe: Recipe, run_folder: Path) -> Source:
    measured = measure(run_folder)
    lengths, ranks_then = measured.lengths, measured.recipe.trainer.num_processes

    def costs_of(num_ranks: int) -> Costs:
        per_token = measured.costs.train_seconds_per_token * ranks_then / num_ranks
        return replace(measured.costs, train_seconds_per_token=per_token)

    run = PlannedRun.of(
        recipe,
        costs_of(recipe.trainer.num_processes),
        tokens_held=lengths.tokens_held,
        no_signal_share=measured.no_signal_share,
    )
    assumptions = [
        f"costs are {measured.costs.origin}",
        f"lengths are those of {run_folder}, in the order of admission; their mean is {lengths.mean:.0f} "
        f"tokens, the longest {lengths.longest}",
        f"prompts: {lengths.prompt_tokens:.0f} tokens (the mean of that run)",
        "training time per token falls with the number of trainer ranks, the rest of a step stays",
        NO_EVALUATIONS,
    ]
    if measured.recipe.evaluation.every_steps and not measured.recipe.evaluation.num_servers:
        assumptions.append("evaluations of the measured run shared its servers and count as slower ones")
    return Source(recipe, run, lengths, costs_of, assumptions)
