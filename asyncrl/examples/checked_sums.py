"""Sums, answers to check, and a base model that knows two ways to do either: a `prepare.target`.

Half of the corpus are sums: "347+285=" is mostly answered at once, and often wrong; else it is worked column
by column. The other half are answers to check: "347+285=642?" is mostly agreed with, by the same number; else
the sum is worked, and another result disagrees. Training finds that both roles gain by working.
"""

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from asyncrl.examples.agent_roles import wrong_sums
from asyncrl.examples.rows import (
    Example,
    Mix,
    Pretraining,
    Problem,
    Progress,
    Terms,
    build_tokenizer,
    draw_examples,
    draw_problems,
    parse_options,
    problem_of,
    prompt_of,
    row_of,
    work_addition,
    write_rows,
)
from asyncrl.examples.tool_sums import TEMPLATE
from asyncrl.recipe.sections.section import Fraction, Positive


class CheckedSumsOptions(Pretraining):
    """`prepare.options` of a recipe whose target is `prepare`."""

    examples_per_batch: Positive = 64
    num_train: Positive = 2000
    """Rows of train.jsonl."""
    num_heldout: Positive = 256
    """Rows of heldout.jsonl; none of them is in train.jsonl or in the corpus."""
    num_examples: Positive = 20000
    """Examples of the corpus, half of them answers to check; each is seen once."""
    direct: Fraction = 0.65
    """Share of the corpus without working."""
    noise: Fraction = 0.01
    """Chance of a slip per worked step."""


def prepare(folder: Path, progress: Progress, **options: Any) -> None:
    """Writes train.jsonl, heldout.jsonl and model/ (weights, tokenizer) into `folder`. Raises InputError."""
    # It loads torch and transformers.
    from asyncrl.examples.base_model import make_base_model

    settings = parse_options(CheckedSumsOptions, options)
    problems = draw_problems(draw_sum, count=settings.num_train + settings.num_heldout, seed=settings.seed)
    train, heldout = problems[: settings.num_train], problems[settings.num_train :]
    write_rows(folder / "train.jsonl", map(row_of, train))
    write_rows(folder / "heldout.jsonl", map(row_of, heldout))
    corpus = draw_corpus(settings, without=set(map(problem_of, heldout)))
    make_base_model(
        folder / "model",
        build_tokenizer(),
        corpus,
        settings,
        progress,
        max_position_embeddings=128,
        chat_template=TEMPLATE,
    )


def draw_sum(random: Random) -> Terms:
    """Two numbers of 3 digits whose sum has 3 digits."""
    return random.randrange(100, 500), random.randrange(100, 500)


def draw_corpus(settings: CheckedSumsOptions, *, without: set[Problem]) -> Iterator[Example]:
    """A sum, then an answer to check, and so on."""
    # Not the seed of the rows: the corpus would begin with them, in their order.
    random = Random(settings.seed + 1)
    sums = draw_examples(
        draw_sum,
        work_addition,
        mix=Mix(direct=settings.direct, noise=settings.noise),
        count=settings.num_examples // 2,
        seed=settings.seed + 2,
        without=without,
    )
    for example in sums:
        yield example
        yield draw_check(example.terms, random, direct=settings.direct, noise=settings.noise)


def draw_check(terms: Terms, random: Random, *, direct: float, noise: float) -> Example:
    """An answer, right or wrong with equal chance, and what the checker holds right."""
    total = sum(terms)
    shown = random.choice([total, random.choice(wrong_sums(total))])
    prompt = f"{prompt_of(terms)}{shown}?"
    if random.random() < direct:
        return Example(terms, prompt, f"\\boxed{{{shown}}}")
    working, found = work_addition(terms, random, noise)
    return Example(terms, prompt, f"<think>{working}</think>\\boxed{{{found}}}")
