"""Sources of a simulation's costs and lengths: a device's data sheet, and what is assumed of responses."""

from collections.abc import Callable
from dataclasses import dataclass

from asyncrl.model.shape import ModelShape
from asyncrl.readers.planning.devices import find_device
from asyncrl.readers.planning.distributions import Lengths, PlannedPilots, plan_pilots
from asyncrl.readers.planning.estimated import (
    MEAN_SHARE,
    SPREAD,
    assumed_lengths,
    engine_cache_tokens,
    estimate_costs,
)
from asyncrl.readers.planning.settings import Costs, PlannedRun
from asyncrl.recipe import Recipe

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
