"""Makes a base model for tasks that the run takes from a gym of reasoning-gym: a `prepare.target`.

The same small model and plain next-token training as base_model.py, on worked answers to sums, with a
tokenizer that knows the question. Not a trainer to build on."""

import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from tokenizers import Tokenizer

from asyncrl.data.gym import gym_rows
from asyncrl.errors import InputError
from asyncrl.examples.ready_made import copy_model
from asyncrl.examples.rows import (
    SPECIAL,
    Example,
    Pretraining,
    Progress,
    Terms,
    parse_options,
    split_tokenizer,
    write_tokenizer,
)
from asyncrl.recipe import Source
from asyncrl.recipe.sections.section import Count, Fraction, Positive

MARKERS = ("<think>", "</think>", "<answer>", "</answer>")
PREAMBLE = "State the final answer to the following arithmetic problem: "
"""One token: it is the same in all questions."""
VOCABULARY = (*SPECIAL, *MARKERS, PREAMBLE, " + ", " - ", " =", *"+-=;0123456789")
"""A sign of a question is another token than one of an answer; digits are the same."""


class ChainSumOptions(Pretraining):
    """`prepare.options` of a recipe whose target is `prepare`."""

    examples_per_batch: Positive = 64
    config: dict[str, Any] = {}
    """Configuration of chain_sum, as in `data.train`; terms of one digit."""
    num_examples: Positive = 28800
    """Examples of the corpus; each is seen once."""
    worked_first: Count = 12800
    """Examples that the corpus begins with, all worked: what is rare later is learned by then."""
    first_seed: Count = 2_000_000
    """First seed of the corpus's questions: task i of a gym is made from seed + i."""
    heldout_seed: Count = 1_000_000
    heldout_size: Positive = 500
    """Seed and size of `data.heldout`: its questions are not in the corpus."""
    worked: Fraction = 0.15
    """Share of the others that work with a running total; the rest answer in one go."""
    noise: Fraction = 0.02
    """Chance of a slip per worked step."""
    ready_made: bool = True
    """true: take the base model that comes with asyncrl where it was made with these very options.
    false: train it here, 165 seconds of CPU time. Other CPUs round otherwise, so it differs a little."""


def prepare(folder: Path, progress: Progress, **options: Any) -> None:
    """Writes model/ (weights, tokenizer) into `folder`. Raises InputError, also without reasoning-gym."""
    settings = parse_options(ChainSumOptions, options)
    heldout = set(_questions(settings, settings.heldout_seed, settings.heldout_size))
    if settings.ready_made and copy_model(folder / "model", settings):
        write_tokenizer(folder / "model", build_tokenizer())
        progress("base model", 1, 1)
        return
    # It loads torch and transformers: seconds, which a copy does not need.
    from asyncrl.examples.base_model import make_base_model

    corpus = draw_answers(
        _questions(settings, settings.first_seed, settings.num_examples),
        worked_first=settings.worked_first,
        worked=settings.worked,
        noise=settings.noise,
        seed=settings.seed,
        without=heldout,
    )
    make_base_model(folder / "model", build_tokenizer(), corpus, settings, progress)


def build_tokenizer() -> Tokenizer:
    """<bos> stands in front of what is encoded; what is no token is an error."""
    return split_tokenizer(VOCABULARY, rf"{PREAMBLE}|</?think>|</?answer>| [-+] | =|[\s\S]")


def _questions(settings: ChainSumOptions, seed: int, size: int) -> list[str]:
    source = Source(gym="chain_sum", size=size, seed=seed, config=settings.config)
    return [str(found.row["prompt"]) for found in gym_rows(source, "prepare.options")]


_QUESTION = re.compile(r"State the final answer to the following arithmetic problem: (\d(?: [+-] \d)+) =")


def terms_of(question: str) -> Terms:
    """The terms with their signs: 4, -1, -7 of "... problem: 4 - 1 - 7 =". Raises InputError."""
    found = _QUESTION.fullmatch(question)
    if found is None:
        raise InputError(
            f"The question is {question!r}, expected {_QUESTION.pattern!r}: chain_sum with max_digits: 1 and "
            f"without allow_negation."
        )
    return tuple(map(int, re.findall(r"-?\d", found[1].replace(" ", ""))))


def work_chain_sum(terms: Terms, random: Random, noise: float) -> tuple[str, int]:
    """The working of `terms` and what it comes to: "4-1=+03;-7=-04", -4.

    A step copies the next sign and term, and writes the running total with a sign and two digits: so a term
    stands equally far from its step whatever the totals are. Each step is off by one with probability
    `noise`; all after it is consistent with that.
    """
    first, *others = terms
    total, steps = first, list[str]()
    for term in others:
        total += term
        if random.random() < noise:
            total += random.choice((-1, 1))
        steps.append(f"{term:+d}={total:+03d}")
    return f"{first}{';'.join(steps)}", total


def draw_answers(
    questions: Iterable[str],
    *,
    worked_first: int,
    worked: float,
    noise: float,
    seed: int,
    without: Collection[str],
) -> Iterator[Example]:
    """An example per question that is not in `without`. The first `worked_first` questions are worked inside
    <think>, of the others a share `worked`.

    An answer in one go is right: that a small model gets it wrong is for want of room to work.
    """
    random = Random(seed)
    for index, question in enumerate(questions):
        if question in without:
            continue
        terms = terms_of(question)
        if index < worked_first or random.random() < worked:
            working, total = work_chain_sum(terms, random, noise)
            response = f"<think>{working}</think><answer>{total}</answer>"
        else:
            response = f"<answer>{sum(terms)}</answer>"
        yield Example(terms, question, response)
