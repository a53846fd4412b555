"""Sums of two numbers whose columns are a linked list, of sizes far beyond what the base model has read: a
`prepare.target`.

"b35da80.c47b=c" asks for 734 + 785, ones first: from column c on (4 and 7), to b (3 and 5) and d, until a dot. Columns
stand in random order, each as its name, two digits and the name of the next. The working follows the names
and carries, "c11b09...", and the answer has a digit for each column and the last carry behind the dot.

The corpus of the base model has sums of at most `corpus_columns` columns. The rows that are trained on and
held out have more: no text tells the model how to work those.
"""

from collections.abc import Iterator, Set
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Annotated, Any

from pydantic import Field
from tokenizers import Tokenizer

from asyncrl.examples.corpus import Example
from asyncrl.examples.options import parse_options
from asyncrl.examples.pretrain import Pretraining, Progress, Shape, make_base_model
from asyncrl.examples.rows import DataRow, write_rows
from asyncrl.examples.tokenizer import SPECIAL, split_tokenizer
from asyncrl.recipe.sections.section import Fraction, Positive, PositiveFloat

NAMES = "abcdefghijklmnopqrst"
END = "."
"""Stands for the next column of the last one."""
VOCABULARY = (*SPECIAL, "<think>", "</think>", *"0123456789=", END, *NAMES)
LEAST_HELDOUT = 2
"""Columns of the smallest held-out sums: the corpus may have every sum of one column."""
Identity = tuple[tuple[int, int], ...]
"""Of a problem: its columns in their order, the smaller digit of each first."""


class LinkedSumsOptions(Pretraining):
    """`prepare.options` of a recipe whose target is `prepare`."""

    examples_per_batch: Positive = 64
    num_examples: Positive = 22400
    """Examples of the corpus; each is seen once."""
    corpus_columns: Annotated[int, Field(ge=LEAST_HELDOUT, le=len(NAMES))] = 3
    """Columns of the largest sums of the corpus; sizes are equally frequent."""
    most_columns: Annotated[int, Field(ge=LEAST_HELDOUT, le=len(NAMES))] = 10
    """Columns of the largest rows."""
    noise: Fraction = 0.0
    """Chance that a worked column of the corpus is off by one."""
    train_per_size: Positive = 400
    """Rows of train.jsonl of each size, from corpus_columns on."""
    heldout_per_size: Positive = 64
    """Rows of each heldout/N.jsonl; none of them is in train.jsonl or in the corpus."""
    hidden_size: Positive = 64
    rope_theta: PositiveFloat = 1e4


@dataclass(frozen=True, slots=True)
class LinkedSum:
    names: str
    """One for each column, in the order of the list."""
    columns: tuple[tuple[int, int], ...]
    """The two digits of each column, ones first."""

    @property
    def terms(self) -> tuple[int, int]:
        """The two numbers."""
        first, second = (
            int("".join(str(column[row]) for column in reversed(self.columns))) for row in range(2)
        )
        return first, second

    @property
    def identity(self) -> Identity:
        """The same for a problem with other names, written in another order, or with digits of a column swapped."""
        return tuple((min(column), max(column)) for column in self.columns)


def prepare(folder: Path, progress: Progress, **options: Any) -> None:
    """Writes train.jsonl, heldout/N.jsonl for each size N, heldout.jsonl with all of them in turn, and model/
    (weights, tokenizer) into `folder`. Raises InputError."""
    settings = parse_options(LinkedSumsOptions, options)
    heldout = draw_heldout(settings)
    without = {problem.identity for problems in heldout.values() for problem in problems}
    random = Random(settings.seed + 3)
    rows = {size: [row_of(problem, random) for problem in found] for size, found in heldout.items()}
    (folder / "heldout").mkdir()
    for size, found in rows.items():
        write_rows(folder / "heldout" / f"{size}.jsonl", found)
    write_rows(folder / "heldout.jsonl", (row for turn in zip(*rows.values(), strict=True) for row in turn))
    train = draw_train(settings, without=without)
    write_rows(folder / "train.jsonl", (row_of(problem, random) for problem in train))
    make_base_model(
        folder / "model",
        build_tokenizer(),
        draw_corpus(settings, without=without),
        settings,
        progress,
        shape=Shape(hidden_size=settings.hidden_size, rope_theta=settings.rope_theta),
    )


def build_tokenizer() -> Tokenizer:
    """<bos> stands in front of what is encoded; a character outside the vocabulary is an error."""
    return split_tokenizer(VOCABULARY, r"</?think>|[\s\S]")


def draw_sum(num_columns: int, random: Random) -> LinkedSum:
    names = "".join(random.sample(NAMES, num_columns))
    return LinkedSum(names, tuple((random.randrange(10), random.randrange(10)) for _ in names))


def draw_heldout(settings: LinkedSumsOptions) -> dict[int, list[LinkedSum]]:
    """By size, problems of which no two are the same."""
    random = Random(settings.seed)
    return {
        size: list(_draw_new(size, settings.heldout_per_size, random, set()))
        for size in range(LEAST_HELDOUT, settings.most_columns + 1)
    }


def draw_train(settings: LinkedSumsOptions, *, without: Set[Identity]) -> Iterator[LinkedSum]:
    random = Random(settings.seed + 2)
    for size in range(settings.corpus_columns, settings.most_columns + 1):
        yield from _draw_new(size, settings.train_per_size, random, set(without))


def draw_corpus(settings: LinkedSumsOptions, *, without: Set[Identity]) -> Iterator[Example]:
    # Not the seed of the rows: the corpus would begin with them, in their order.
    random = Random(settings.seed + 1)
    for _ in range(settings.num_examples):
        size = random.randint(1, settings.corpus_columns)
        problem = draw_sum(size, random)
        while problem.identity in without:
            problem = draw_sum(size, random)
        working, answer = work_sum(problem, random, settings.noise)
        yield Example(problem.terms, write_sum(problem, random), f"<think>{working}</think>{answer}")


def write_sum(problem: LinkedSum, random: Random) -> str:
    """The prompt: the columns in random order, and the name of the first."""
    names = problem.names
    linked = zip(names, problem.columns, [*names[1:], END], strict=True)
    written = [f"{name}{first}{second}{following}" for name, (first, second), following in linked]
    random.shuffle(written)
    return f"{''.join(written)}={names[0]}"


def work_sum(problem: LinkedSum, random: Random, noise: float) -> tuple[str, str]:
    """The working and the answer that it comes to: "c11b09d15.", "c1b9d5.1".

    A step is a name and the sum of its column, carry included, in two digits. It is off by one with
    probability `noise`; all after it is consistent with that.
    """
    steps, digits, carry = list[str](), list[str](), 0
    for name, (first, second) in zip(problem.names, problem.columns, strict=True):
        column = first + second + carry
        if random.random() < noise:
            # A zero can only be off upwards: a negative column has no digit and no carry.
            column += random.choice((-1, 1)) if column else 1
        carry = column // 10
        steps.append(f"{name}{column:02}")
        digits.append(f"{name}{column % 10}")
    return "".join(steps) + END, "".join(digits) + END + (str(carry) if carry else "")


def row_of(problem: LinkedSum, random: Random) -> DataRow:
    _, answer = work_sum(problem, random, noise=0.0)
    return {
        "prompt": write_sum(problem, random),
        "answer": answer,
        "verifier": "exact",
        "size": len(problem.columns),
    }


def _draw_new(size: int, count: int, random: Random, seen: set[Identity]) -> Iterator[LinkedSum]:
    """`count` problems that are not in `seen`, none twice."""
    while count:
        problem = draw_sum(size, random)
        if problem.identity not in seen:
            seen.add(problem.identity)
            count -= 1
            yield problem
