"""Makes data and a base model for the code example, alone or mixed with additions: a `prepare.target`.

The same small model and plain next-token training as base_model.py, on the corpus of code_tasks.py, with a
tokenizer that knows words. Not a trainer to build on."""

from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from tokenizers import Tokenizer

from asyncrl.examples.arithmetic import draw_addition, work_addition
from asyncrl.examples.base_model import make_base_model
from asyncrl.examples.code_tasks import Bugs, draw_code_examples, draw_tasks, row_of_task
from asyncrl.examples.corpus import Example, Mix, draw_examples
from asyncrl.examples.rows import (
    CHARACTERS,
    MARKERS,
    SPECIAL,
    Pretraining,
    Progress,
    draw_problems,
    parse_options,
    problem_of,
    row_of,
    split_tokenizer,
    write_rows,
)
from asyncrl.recipe.sections.section import Fraction, Positive

WORDS = (
    "def f a return sum len x for in if of same square plus minus times list distinct all even odd over under"
).split()
VOCABULARY = (*SPECIAL, *MARKERS, *CHARACTERS, *"{[]<>%", *WORDS)
"""One token per word of the tasks and programs, per digit and per sign; a name may not occur twice."""


class CodeOptions(Pretraining):
    """`prepare.options` of a recipe whose target is `prepare`."""

    arithmetic_share: Fraction = 0.0
    """Share of rows and corpus that are additions; above 0 the run mixes two tasks and two verifiers."""
    num_heldout: Positive = 256
    """Rows of heldout.jsonl; none of them is in train.jsonl or in the corpus."""
    inclusive: Fraction = 0.6
    swapped: Fraction = 0.6
    duplicates: Fraction = 0.6
    slip: Fraction = 0.05
    """Chances of the bugs: code_tasks.py:Bugs."""
    num_examples: Positive = 20000
    """Examples of the corpus; each is seen once."""


def prepare(folder: Path, progress: Progress, **options: Any) -> None:
    """Writes train.jsonl, heldout.jsonl and model/ (weights, tokenizer) into `folder`. Raises InputError."""
    settings = parse_options(CodeOptions, options)
    examples = write_data(folder, settings)
    make_base_model(folder / "model", build_tokenizer(), examples, settings, progress)


def write_data(folder: Path, settings: CodeOptions) -> list[Example]:
    """The two data files; the corpus, which holds none of the held-out tasks."""
    tasks = draw_tasks(count=1800, seed=settings.seed)
    share, random = settings.arithmetic_share, Random(settings.seed)
    num_sums = round(settings.num_heldout * share)
    sums = draw_problems(draw_addition, count=num_sums + round(4000 * share), seed=settings.seed)
    num_code = settings.num_heldout - num_sums
    heldout = [row_of_task(task, seed=settings.seed) for task in tasks[:num_code]] + [
        *map(row_of, sums[:num_sums])
    ]
    train = [row_of_task(task, seed=settings.seed) for task in tasks[num_code:]] + [
        *map(row_of, sums[num_sums:])
    ]
    for name, rows in (("train", train), ("heldout", heldout)):
        random.shuffle(rows)
        write_rows(folder / f"{name}.jsonl", rows)
    bugs = Bugs(settings.inclusive, settings.swapped, settings.duplicates, settings.slip)
    code = draw_code_examples(
        bugs=bugs, count=settings.num_examples, seed=settings.seed + 1, tasks=tasks[num_code:]
    )
    worked = draw_examples(
        draw_addition,
        work_addition,
        mix=Mix(),
        count=round(settings.num_examples * share),
        seed=settings.seed + 1,
        without={problem_of(terms) for terms in sums[:num_sums]},
    )
    examples = [*islice(code, round(settings.num_examples * (1 - share))), *worked]
    random.shuffle(examples)
    return examples


def build_tokenizer() -> Tokenizer:
    """Words, digits and signs are tokens; <bos> stands in front of what is encoded."""
    return split_tokenizer(VOCABULARY, r"<think>|</think>|\\boxed\{|[a-z]+|[\s\S]")
