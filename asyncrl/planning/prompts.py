"""How long a recipe's prompts are, by a sample of its rows, where rows and tokenizer are on this machine."""

import itertools
import statistics
from dataclasses import dataclass
from pathlib import Path

from asyncrl.data.rows import Row, rows_of
from asyncrl.errors import InputError
from asyncrl.model.source import model_folder
from asyncrl.model.tokenizer import TextCodec
from asyncrl.recipe import Recipe, Source
from asyncrl.tasks.task_list import template_of

SAMPLED_ROWS = 256
"""Rows read of each source."""


@dataclass(frozen=True, slots=True)
class PromptTokens:
    mean: float | None
    """None where the rows say nothing."""
    origin: str
    """A clause: from where it is known, or why not."""


def sampled_prompts(recipe: Recipe) -> PromptTokens:
    """The mean of data.train's first rows, template included; of several sources by their weights.

    Fetches nothing, and whatever keeps it from reading the rows is told in the result.
    """
    sources = recipe.data.train_sources()
    if far := next((source for source in sources if not _is_here(source)), None):
        return PromptTokens(None, f"{far.title()} of data.train is not on this machine yet")
    try:
        codec = TextCodec(model_folder(recipe.model), rollout=recipe.rollout)
        counts = [_counts(recipe, source, codec) for source in sources]
    except InputError as error:
        return PromptTokens(None, f"data.train cannot be sampled: {str(error).splitlines()[0]}")
    if not all(counts):
        return PromptTokens(None, "a source of data.train has no rows to sample")
    means = [statistics.fmean(each) for each in counts]
    weights = [source.weight or 1.0 for source in sources]
    mean = sum(map(float.__mul__, means, weights)) / sum(weights)
    num_rows = sum(map(len, counts))
    return PromptTokens(mean, f"the mean of the first {num_rows} rows of data.train")


def _is_here(source: Source) -> bool:
    return source.path is not None and Path(source.path).exists()


def _counts(recipe: Recipe, source: Source, codec: TextCodec) -> list[int]:
    template = template_of(recipe)
    rows = itertools.islice(rows_of([source], "data.train", recipe.verifying, split="train"), SAMPLED_ROWS)
    counts = []
    for row in rows:
        if isinstance(row, Row):
            prompt = row.prompt if template is None else template(row.prompt)
            counts.append(len(codec.render_prompt(prompt)[1]))
    return counts
