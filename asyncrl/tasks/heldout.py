"""Held-out tasks: the first ones of each source."""

from collections.abc import Sequence

from asyncrl.data.rows import grader_of, heldout_rows
from asyncrl.errors import InputError
from asyncrl.model.tokenizer import TextCodec
from asyncrl.recipe import Recipe, Source
from asyncrl.records import Task
from asyncrl.tasks.order import TaskTable
from asyncrl.tasks.source_choice import fair_shares
from asyncrl.tasks.task_list import ReadingStage, TaskMaker, template_of, use_of
from asyncrl.tasks.verifier_cache import VerifierCache


def read_heldout_tasks(
    recipe: Recipe,
    codec: TextCodec,
    verifiers: VerifierCache,
    context_tokens: int,
    stage: ReadingStage | None = None,
) -> list[Task]:
    """At most evaluation.num_tasks held-out tasks; none without data.heldout.

    Of each source its first ones, as many of one as of another or as their weights say; what a short source
    leaves free, the others fill. Raises InputError, also where a source would get no task.
    """
    maker = TaskMaker("data.heldout", recipe.data, codec, verifiers, context_tokens, template_of(recipe))
    maker.stage = stage
    sources = recipe.data.heldout_sources()
    grader = grader_of(recipe.evaluation)
    rows = heldout_rows(recipe.data, recipe.verifying, use_of(recipe, verifiers), grader)
    tasks = maker.make(rows, sources)
    return first_tasks(maker, tasks, sources, recipe.evaluation.num_tasks, "evaluation.num_tasks")


def first_tasks(
    maker: TaskMaker, tasks: TaskTable, sources: Sequence[Source], limit: int, limit_key: str
) -> list[Task]:
    """At most `limit` of the `tasks` that `maker` made of `sources`: the first of each, by their weights.

    Raises InputError where a source would get no task.
    """
    sizes = [maker.findings.num_made[index] for index in range(len(sources))]
    shares = fair_shares(sizes, [source.weight or 1.0 for source in sources], limit)
    if 0 in shares:
        starved = sources[shares.index(0)].title()
        raise InputError(
            f"{limit_key} is {limit}, which leaves no task for {starved} of {maker.key}. "
            f"Raise {limit_key}, or the weight of that source."
        )
    chosen: list[Task] = []
    start = 0
    for size, share in zip(sizes, shares, strict=True):
        chosen += tasks[start : start + share]
        start += size
    return chosen
