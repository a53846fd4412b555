"""Makes data and a base model for a sum task: the `prepare.target` of the example recipes.

Loads torch only where the base model has to be trained.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import log
from pathlib import Path
from random import Random
from typing import Annotated, Any, Literal

from pydantic import Field

from asyncrl.examples.ready_made import copy_model
from asyncrl.examples.rows import (
    Draw,
    Example,
    Mix,
    Pretraining,
    Progress,
    Terms,
    Work,
    build_tokenizer,
    draw_addition,
    draw_examples,
    draw_problems,
    parse_options,
    problem_of,
    prompt_of,
    read_columns,
    row_of,
    work_addition,
    write_rows,
    write_tokenizer,
)
from asyncrl.recipe.sections.section import Fraction, Positive

NAMES = "abcdefghijklmnopqrstuvwx"
"""Names of the terms, in their order: with a name, the next term is found however long the sum is."""
MIN_TERMS, MAX_TERMS = 2, len(NAMES)
MEDIAN_TERMS, SPREAD_TERMS = 5, 0.7
"""Median and spread of the log-normal number of terms, before those outside the bounds are drawn again."""
NUM_COLUMNS = 3
"""Columns of a running total: ones, tens, and all the hundreds together."""


def draw_long_sum(random: Random) -> Terms:
    """2 to 24 digits; how many is log-normal, so that long sums are the tail, and so are worked answers
    (about 30 to 300 tokens): a trainer that waits for the longest one of a batch, or pads to it, pays for
    it."""
    num_terms = 0
    while not MIN_TERMS <= num_terms <= MAX_TERMS:
        num_terms = round(random.lognormvariate(log(MEDIAN_TERMS), SPREAD_TERMS))
    return tuple(random.randint(1, 9) for _ in range(num_terms))


def write_long_sum(terms: Terms) -> str:
    """The prompt: "a7+b3+c9=" asks for 19."""
    return "+".join(f"{name}{term}" for name, term in zip(NAMES, terms, strict=False)) + "="


def work_long_sum(terms: Terms, random: Random, noise: float) -> tuple[str, int]:
    """The working of `terms` and the sum it comes to: "a7+07,00,00;b3+10,01,00;c9=09,01,00", 19.

    A step names the next term, copies it and the sign behind it, so that "=" foretells the end; then it
    writes the column sums of the running total and the term, carries included. They always have two digits,
    so that what a column is made of stands equally far before it in every step.

    With probability `noise` a step has a column that is off by one; all after it is consistent with that.
    """
    columns, steps = [0] * NUM_COLUMNS, list[str]()
    for name, term in zip(NAMES, terms, strict=False):
        slipped = random.randrange(NUM_COLUMNS) if random.random() < noise else None
        columns = _add(columns, term, slipped, random)
        sign = "=" if len(steps) == len(terms) - 1 else "+"
        steps.append(f"{name}{term}{sign}{_write(columns)}")
    return ";".join(steps), read_columns(columns)


def _add(columns: list[int], term: int, slipped: int | None, random: Random) -> list[int]:
    """The column sums of `term` and the total that `columns` stand for; column `slipped` is off by one."""
    addends, sums, carry = (term, 0, 0), list[int](), 0
    for place, (column, addend) in enumerate(zip(columns, addends, strict=True)):
        # The last column holds all the hundreds.
        digit = column if place == NUM_COLUMNS - 1 else column % 10
        result = digit + addend + carry
        if place == slipped:
            # A zero can only be off upwards: a negative column has no digit and no carry.
            result += random.choice([-1, 1]) if result else 1
        sums.append(result)
        carry = result // 10
    return sums


def _write(columns: list[int]) -> str:
    return ",".join(f"{column:02}" for column in columns)


@dataclass(frozen=True, slots=True)
class SumTask:
    """How the sums of a task are drawn, written and worked."""

    draw: Draw
    work: Work
    write_prompt: Callable[[Terms], str]
    extra: str = ""
    """Characters that its text has beyond the common vocabulary."""


TASKS = {
    "arithmetic": SumTask(draw_addition, work_addition, prompt_of),
    "longtail": SumTask(draw_long_sum, work_long_sum, write_long_sum, NAMES),
}


class SumsOptions(Pretraining):
    """`prepare.options` of a recipe whose target is `prepare`."""

    task: Literal["arithmetic", "longtail"]
    num_train: Positive = 8000
    """Rows of train.jsonl."""
    num_heldout: Positive = 512
    """Rows of heldout.jsonl; none of them is in train.jsonl or in the corpus."""
    direct: Fraction = 0.75
    """Share of the corpus that answers without working."""
    wrong: Fraction = 0.5
    """Share of the direct answers that are off by 1, 10 or 100."""
    noise: Fraction = 0.03
    """Chance of a slip per worked step."""
    num_examples: Positive = 50000
    """Examples of the corpus; each is seen once."""
    max_position_embeddings: Annotated[int, Field(ge=64)] = 256
    """The model's context in tokens."""
    ready_made: bool = True
    """true: take the base model that comes with asyncrl where it was made with these very options.
    false: train it here, 100 seconds of CPU time. Other CPUs round otherwise, so it differs a little."""


def prepare(folder: Path, progress: Progress, **options: Any) -> None:
    """Writes train.jsonl, heldout.jsonl and model/ (weights, tokenizer) into `folder`. Raises InputError."""
    settings = parse_options(SumsOptions, options)
    task = TASKS[settings.task]
    count = settings.num_train + settings.num_heldout
    problems = draw_problems(task.draw, count=count, seed=settings.seed)
    train, heldout = problems[: settings.num_train], problems[settings.num_train :]
    write_rows(folder / "train.jsonl", (row_of(terms, task.write_prompt) for terms in train))
    write_rows(folder / "heldout.jsonl", (row_of(terms, task.write_prompt) for terms in heldout))
    tokenizer = build_tokenizer(task.extra)
    if settings.ready_made and copy_model(folder / "model", settings):
        write_tokenizer(folder / "model", tokenizer)
        progress("base model", 1, 1)
        return
    # It loads torch and transformers: seconds, which a copy does not need.
    from asyncrl.examples.base_model import make_base_model

    make_base_model(
        folder / "model",
        tokenizer,
        draw_corpus(settings, heldout),
        settings,
        progress,
        max_position_embeddings=settings.max_position_embeddings,
    )


def draw_corpus(settings: SumsOptions, heldout: Iterable[Terms]) -> Iterator[Example]:
    """The examples that the base model learns from, in their order; none is of a sum of `heldout`."""
    task = TASKS[settings.task]
    return draw_examples(
        task.draw,
        task.work,
        write_prompt=task.write_prompt,
        mix=Mix(direct=settings.direct, wrong=settings.wrong, noise=settings.noise),
        count=settings.num_examples,
        # Not the seed of the rows: the corpus would begin with them, in their order.
        seed=settings.seed + 1,
        without={problem_of(terms) for terms in heldout},
    )
