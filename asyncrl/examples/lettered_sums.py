"""Sums whose columns carry letters, of sizes far beyond what the base model has read: a `prepare.target`.

"c47b35a80=" asks for 438 + 750: columns from the left, each a letter and two digits. Letters rise from the
right, from any one on: a working looks its columns up by them, however many there are. It is "a08b08c11", and
the answer "d1c1b8a8".

The corpus of the base model has sums of at most `corpus_columns` columns, written by a hand that now and then
begins some columns too early or ends some too late, and works them as zeros. Such an answer counts as wrong.
The rows that are trained on and held out have more columns; no text tells the model how to work those.
"""

from collections.abc import Iterator, Set
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Annotated, Any

from pydantic import Field
from tokenizers import Tokenizer

from asyncrl.examples.base_model import make_base_model
from asyncrl.examples.rows import (
    SPECIAL,
    DataRow,
    Example,
    Pretraining,
    Progress,
    parse_options,
    split_tokenizer,
    write_rows,
)
from asyncrl.recipe.sections.section import Count, Fraction, Positive

LETTERS = "abcdefghijklmnopqrst"
VOCABULARY = (*SPECIAL, "<think>", "</think>", *"0123456789=", *LETTERS)
MOST_COLUMNS = len(LETTERS) - 1
"""One letter is left for the last carry."""
LEAST_HELDOUT = 2
"""Columns of the smallest held-out sums: the corpus may have every sum of one column."""
Identity = tuple[tuple[int, int], ...]
"""A problem's columns from the right, the smaller digit of each first."""


class LetteredSumsOptions(Pretraining):
    """`prepare.options` of a recipe whose target is `prepare`."""

    examples_per_batch: Positive = 64
    num_examples: Positive = 38400
    """Examples of the corpus; each is seen once."""
    corpus_columns: Annotated[int, Field(ge=LEAST_HELDOUT, le=MOST_COLUMNS)] = 5
    """Columns of the largest sums of the corpus; sizes are equally frequent."""
    most_columns: Annotated[int, Field(ge=LEAST_HELDOUT, le=MOST_COLUMNS)] = 12
    """Columns of the largest rows."""
    padding: Fraction = 0.2
    """Chance of one more column of zeros at either end of a working of the corpus, and then of another."""
    most_padding: Count = 2
    """Most columns of zeros at either end."""
    train_per_size: Positive = 400
    """Rows of train.jsonl of each size, from corpus_columns on."""
    heldout_per_size: Positive = 64
    """Rows of each heldout/N.jsonl; none of them is in train.jsonl or in the corpus."""
    hidden_size: Positive = 64


@dataclass(frozen=True, slots=True)
class LetteredSum:
    start: int
    """Place in LETTERS of the first column from the right."""
    columns: tuple[tuple[int, int], ...]
    """The two digits of each column, from the right."""

    @property
    def terms(self) -> tuple[int, int]:
        """The two numbers."""
        first, second = (
            int("".join(str(column[row]) for column in reversed(self.columns))) for row in range(2)
        )
        return first, second

    @property
    def identity(self) -> Identity:
        """The same for a problem with other letters, or with the digits of a column swapped."""
        return tuple((min(column), max(column)) for column in self.columns)


def prepare(folder: Path, progress: Progress, **options: Any) -> None:
    """Writes train.jsonl, heldout/N.jsonl for each size N, heldout.jsonl with all of them in turn, and model/
    (weights, tokenizer) into `folder`. Raises InputError."""
    settings = parse_options(LetteredSumsOptions, options)
    heldout = draw_heldout(settings)
    without = {problem.identity for problems in heldout.values() for problem in problems}
    rows = [[row_of(problem) for problem in problems] for problems in heldout.values()]
    (folder / "heldout").mkdir()
    for size, found in zip(heldout, rows, strict=True):
        write_rows(folder / "heldout" / f"{size}.jsonl", found)
    write_rows(folder / "heldout.jsonl", (row for turn in zip(*rows, strict=True) for row in turn))
    write_rows(folder / "train.jsonl", map(row_of, draw_train(settings, without=without)))
    make_base_model(
        folder / "model",
        build_tokenizer(),
        draw_corpus(settings, without=without),
        settings,
        progress,
        hidden_size=settings.hidden_size,
    )


def build_tokenizer() -> Tokenizer:
    """<bos> stands in front of what is encoded; a character outside the vocabulary is an error."""
    return split_tokenizer(VOCABULARY, r"</?think>|[\s\S]")


def draw_sum(num_columns: int, random: Random) -> LetteredSum:
    start = random.randrange(MOST_COLUMNS - num_columns + 1)
    columns = tuple((random.randrange(10), random.randrange(10)) for _ in range(num_columns))
    return LetteredSum(start, columns)


def draw_heldout(settings: LetteredSumsOptions) -> dict[int, list[LetteredSum]]:
    """By size, problems of which no two are the same."""
    random = Random(settings.seed)
    return {
        size: list(_draw_new(size, settings.heldout_per_size, random, set()))
        for size in range(LEAST_HELDOUT, settings.most_columns + 1)
    }


def draw_train(settings: LetteredSumsOptions, *, without: Set[Identity]) -> Iterator[LetteredSum]:
    random = Random(settings.seed + 2)
    for size in range(settings.corpus_columns, settings.most_columns + 1):
        yield from _draw_new(size, settings.train_per_size, random, set(without))


def draw_corpus(settings: LetteredSumsOptions, *, without: Set[Identity]) -> Iterator[Example]:
    # Not the seed of the rows: the corpus would begin with them, in their order.
    random = Random(settings.seed + 1)
    for _ in range(settings.num_examples):
        size = random.randint(1, settings.corpus_columns)
        problem = draw_sum(size, random)
        while problem.identity in without:
            problem = draw_sum(size, random)
        working, answer = work_sum(pad(problem, settings, random))
        yield Example(problem.terms, write_sum(problem), f"<think>{working}</think>{answer}")


def pad(problem: LetteredSum, settings: LetteredSumsOptions, random: Random) -> LetteredSum:
    """`problem` with columns of zeros at either end, as far as there are letters."""
    most, end = settings.most_padding, problem.start + len(problem.columns)
    before, behind = (
        min(_draw_length(settings.padding, most, random), room)
        for room in (problem.start, MOST_COLUMNS - end)
    )
    zeros = ((0, 0),)
    return LetteredSum(problem.start - before, zeros * before + problem.columns + zeros * behind)


def write_sum(problem: LetteredSum) -> str:
    """The prompt: columns from the left, as one writes numbers."""
    letters = LETTERS[problem.start :]
    written = [f"{letter}{a}{b}" for letter, (a, b) in zip(letters, problem.columns, strict=False)]
    return "".join(reversed(written)) + "="


def work_sum(problem: LetteredSum) -> tuple[str, str]:
    """The working and the answer: "a08b08c11", "d1c1b8a8".

    A step is a letter and the sum of its column, carry included, in two digits.
    """
    letters = LETTERS[problem.start :]
    steps, digits, carry = list[str](), list[str](), 0
    for letter, (first, second) in zip(letters, problem.columns, strict=False):
        column = first + second + carry
        steps.append(f"{letter}{column:02}")
        digits.append(f"{letter}{column % 10}")
        carry = column // 10
    if carry:
        digits.append(f"{letters[len(digits)]}{carry}")
    return "".join(steps), "".join(reversed(digits))


def row_of(problem: LetteredSum) -> DataRow:
    _, answer = work_sum(problem)
    size = len(problem.columns)
    return {"prompt": write_sum(problem), "answer": answer, "verifier": "exact", "size": size}


def _draw_length(chance: float, most: int, random: Random) -> int:
    """Successes in a row, each with `chance`, but at most `most`."""
    length = 0
    while length < most and random.random() < chance:
        length += 1
    return length


def _draw_new(size: int, count: int, random: Random, seen: set[Identity]) -> Iterator[LetteredSum]:
    """`count` problems that are not in `seen`, none twice."""
    while count:
        problem = draw_sum(size, random)
        if problem.identity not in seen:
            seen.add(problem.identity)
            count -= 1
            yield problem
