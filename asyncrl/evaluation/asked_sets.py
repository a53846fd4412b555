"""The evaluation sets that a recipe names besides data.heldout: evaluation.benchmarks and evaluation.sets."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from asyncrl.data.benchmarks import PLAIN, Benchmark, find_benchmark
from asyncrl.data.digests import question_digest
from asyncrl.data.row_use import RowUse
from asyncrl.data.rows import Unanswered, heldout_rows, rows_of
from asyncrl.errors import InputError
from asyncrl.evaluation.evaluation_set import SPLIT, EvaluationSet, read_evaluation_set
from asyncrl.recipe import HeldOutSet, Recipe
from asyncrl.recipe.sections.evaluation import CUTS
from asyncrl.tasks.verifier_cache import VerifierCache


def benchmarks_of(recipe: Recipe) -> list[Benchmark]:
    """Benchmarks of evaluation.benchmarks, then evaluation.sets. Raises InputError for a name that means
    nothing."""
    named = [named_benchmark(recipe, name) for name in recipe.evaluation.benchmarks]
    return named + [_own(recipe, settings) for settings in recipe.evaluation.sets]


def named_benchmark(recipe: Recipe, name: str) -> Benchmark:
    """A set of evaluation.sets, else a benchmark; a file is sampled as data.heldout is.

    Raises InputError for a name that means nothing.
    """
    section = recipe.evaluation
    for settings in section.sets:
        if settings.title() == name:
            return _own(recipe, settings)
    return find_benchmark(
        name,
        num_samples=section.samples_per_task,
        temperature=section.temperature,
        max_new_tokens=section.rollout_of(recipe.rollout).max_new_tokens,
    )


def read_evaluation_sets(
    recipe: Recipe,
    benchmarks: Sequence[Benchmark],
    model_folder: Path,
    verifiers: VerifierCache,
    context_tokens: int,
    *,
    now: datetime,
) -> tuple[EvaluationSet, ...]:
    """Their tasks. Raises InputError, also where two have one name."""
    names = [benchmark.name for benchmark in benchmarks]
    for name in names:
        if names.count(name) > 1:
            raise InputError(
                f"The benchmark {name} is named twice. Name it once, or give a set of evaluation.sets "
                f"another name."
            )
    return tuple(
        read_evaluation_set(each, recipe, model_folder, verifiers, context_tokens, now=now)
        for each in benchmarks
    )


def _own(recipe: Recipe, settings: HeldOutSet) -> Benchmark:
    section = recipe.evaluation
    limit = section.rollout_of(recipe.rollout).max_new_tokens
    if settings.benchmark is not None:
        found = find_benchmark(
            settings.benchmark, num_samples=1, temperature=section.temperature, max_new_tokens=limit
        )
    else:
        found = Benchmark(
            str(settings.name),
            settings.heldout_sources()[0],
            num_rows=0,
            verifier=None,
            num_samples=1,
            temperature=section.temperature,
            max_new_tokens=limit,
            instruction=PLAIN,
            instruction_name="rows",
            is_asked_as_rows=True,
        )
    if found.is_completion and settings.template is not None:
        raise InputError(
            f"evaluation.sets {settings.title()} has a template, but {found.name} is a text that the model "
            f"continues. Leave the template out."
        )
    num_samples = settings.samples_per_task or found.num_samples
    _check_cuts(settings, num_samples)
    return replace(
        found,
        name=settings.name or found.name,
        num_samples=num_samples,
        temperature=settings.temperature or found.temperature,
        max_new_tokens=settings.max_new_tokens or found.max_new_tokens,
        settings=settings,
        is_sampled=settings.temperature is not None,
    )


def _check_cuts(settings: HeldOutSet, num_samples: int) -> None:
    """Raises InputError where a set cuts the distribution of samples that it never takes."""
    stated = [name for name in CUTS if getattr(settings, name) is not None]
    if stated and num_samples == 1 and settings.temperature is None:
        name = stated[0]
        raise InputError(
            f"evaluation.sets {settings.title()} has {name} {getattr(settings, name):g}, but asks for the "
            f"most likely answer alone. Set its temperature or samples_per_task, or remove {name}."
        )


def evaluated_questions(recipe: Recipe) -> set[bytes]:
    """Digests of the questions of data.heldout, evaluation.benchmarks and evaluation.sets: of all their rows.

    Fetches rows that are of a hub. Raises InputError for what cannot be read.
    """
    found: set[bytes] = set()
    sources = (
        [heldout_rows(recipe.data, recipe.verifying, RowUse())] if recipe.data.heldout is not None else []
    )
    for each in benchmarks_of(recipe):
        key = f"the evaluation set {each.name}"
        sources.append(rows_of(each.sources(), key, recipe.verifying, RowUse(), split=SPLIT))
    for rows in sources:
        found.update(question_digest(row.prompt) for row in rows if not isinstance(row, Unanswered))
    return found
