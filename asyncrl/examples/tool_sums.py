"""Sums of two numbers, and a base model that may work them out or call a calculator: a `prepare.target`.

Short sums, of two numbers below 50, the model learns to write down. Long ones, of numbers with four or five
digits, it does not: what the corpus answers to them at once is a guess. Of both kinds a share calls the
calculator in the form of turns.call_format: tags, of short sums a larger one, so that training can find out
when a call pays. What the tool answers is context: the base model is not trained to write it.
"""

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from tokenizers import Tokenizer

from asyncrl.examples.base_model import make_base_model
from asyncrl.examples.rows import (
    SPECIAL,
    Example,
    Pretraining,
    Problem,
    Progress,
    Terms,
    draw_problems,
    parse_options,
    problem_of,
    prompt_of,
    row_of,
    split_tokenizer,
    write_rows,
)
from asyncrl.recipe.sections.section import Fraction, Positive

SHORT_BELOW = 50
"""Both numbers of a short sum are smaller."""
LONG_DIGITS = (4, 5)
"""Fewest and most digits of the numbers of a long sum."""
NUM_LEADING = 2
"""Digits of a long sum that a guess has right."""
ABOUT = "~"
"""Stands before a guess."""
TAGS = ("<calculator>", "</calculator>", "<output>", "</output>")
TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ message.content }}{% endfor %}"
"""For agents: messages follow each other without a mark between them."""
VOCABULARY = (*SPECIAL, *TAGS, ABOUT, "\\boxed{", *"0123456789+=}")


class ToolSumsOptions(Pretraining):
    """`prepare.options` of a recipe whose target is `prepare`."""

    num_train: Positive = 1000
    """Rows of train/short.jsonl, and of train/long.jsonl."""
    num_heldout: Positive = 200
    """Rows of heldout/short.jsonl, and of heldout/long.jsonl; none of them is in train/ or in the corpus."""
    num_examples: Positive = 56000
    """Examples of the corpus; each is seen once."""
    short: Fraction = 0.8
    """Share of short sums in the corpus."""
    called_short: Fraction = 0.3
    """Share of the corpus's short sums that calls the calculator; the rest answers at once."""
    called_long: Fraction = 0.1
    """The same share of its long sums."""


def prepare(folder: Path, progress: Progress, **options: Any) -> None:
    """Writes train/, heldout/ (both with short.jsonl and long.jsonl) and model/ (weights, tokenizer) into
    `folder`. Raises InputError."""
    settings = parse_options(ToolSumsOptions, options)
    for name in ("train", "heldout"):
        (folder / name).mkdir()
    heldout = set[Problem]()
    for kind, draw in (("short", draw_short), ("long", draw_long)):
        problems = draw_problems(draw, count=settings.num_train + settings.num_heldout, seed=settings.seed)
        write_rows(folder / "train" / f"{kind}.jsonl", map(row_of, problems[: settings.num_train]))
        write_rows(folder / "heldout" / f"{kind}.jsonl", map(row_of, problems[settings.num_train :]))
        heldout.update(map(problem_of, problems[settings.num_train :]))
    corpus = draw_corpus(settings, without=heldout)
    make_base_model(
        folder / "model",
        build_tokenizer(),
        corpus,
        settings,
        progress,
        max_position_embeddings=128,
        chat_template=TEMPLATE,
    )


def build_tokenizer() -> Tokenizer:
    """<bos> stands in front of what is encoded; a character outside the vocabulary is an error."""
    return split_tokenizer(VOCABULARY, r"</?calculator>|</?output>|\\boxed\{|[\s\S]")


def draw_short(random: Random) -> Terms:
    return random.randrange(SHORT_BELOW), random.randrange(SHORT_BELOW)


def draw_long(random: Random) -> Terms:
    return _draw_long_number(random), _draw_long_number(random)


def is_long(terms: Terms) -> bool:
    return max(terms) >= SHORT_BELOW


def draw_corpus(settings: ToolSumsOptions, *, without: set[Problem]) -> Iterator[Example]:
    # Not the seed of the rows: the corpus would begin with them, in their order.
    random = Random(settings.seed + 1)
    for _ in range(settings.num_examples):
        is_short = random.random() < settings.short
        draw, called = (draw_short, settings.called_short) if is_short else (draw_long, settings.called_long)
        terms = draw(random)
        while problem_of(terms) in without:
            terms = draw(random)
        yield respond(terms, random, called=called)


def respond(terms: Terms, random: Random, *, called: float) -> Example:
    """A sum with its answer. A long one that is answered at once is a guess: no text of a small model's size
    teaches to add five digits in one go."""
    prompt, total = prompt_of(terms), sum(terms)
    if random.random() < called:
        call = f"<calculator>{prompt.removesuffix('=')}</calculator>"
        output = f"<output>{total}</output>"
        return Example(terms, prompt, f"{call}{output}\\boxed{{{total}}}", observed=output)
    if is_long(terms):
        return Example(terms, prompt, f"{ABOUT}\\boxed{{{_guess(total, random)}}}")
    return Example(terms, prompt, f"\\boxed{{{total}}}")


def _guess(total: int, random: Random) -> int:
    """A number that begins like `total` and is as long."""
    unit: int = 10 ** (len(str(total)) - NUM_LEADING)
    return total // unit * unit + random.randrange(unit)


def _draw_long_number(random: Random) -> int:
    num_digits = random.randint(*LONG_DIGITS)
    return random.randrange(10 ** (num_digits - 1), 10**num_digits)
