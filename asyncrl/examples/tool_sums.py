"""Sums of two numbers, and a base model that may work them out or call a calculator: a `prepare.target`.

Half of the sums are short, which the model learns to write down; the others are too long for it. Of all
examples a small share calls the calculator in the form of turns.call_format: tags, so that both ways are
there for training to choose from. What the tool answers is context: the base model is not trained to write
it.
"""

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from tokenizers import Tokenizer

from asyncrl.examples.arithmetic import Terms
from asyncrl.examples.corpus import OFFSETS, Example
from asyncrl.examples.options import parse_options
from asyncrl.examples.pretrain import Pretraining, Progress, make_base_model
from asyncrl.examples.rows import draw_problems, problem_of, prompt_of, row_of, write_rows
from asyncrl.examples.tokenizer import SPECIAL, split_tokenizer
from asyncrl.recipe.sections.section import Fraction, Positive

SHORT_DIGITS, LONG_DIGITS = (1, 2), (4, 5)
"""Fewest and most digits of each number."""
TAGS = ("<calculator>", "</calculator>", "<output>", "</output>")
TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ message.content }}{% endfor %}"
"""For agents: messages follow each other without a mark between them."""
VOCABULARY = (*SPECIAL, *TAGS, "\\boxed{", *"0123456789+=}")


class ToolSumsOptions(Pretraining):
    """`prepare.options` of a recipe whose target is `prepare`."""

    num_train: Positive = 6000
    """Rows of train.jsonl."""
    num_heldout: Positive = 512
    """Rows of heldout.jsonl; none of them is in train.jsonl or in the corpus."""
    num_examples: Positive = 32000
    """Examples of the corpus; each is seen once."""
    called: Fraction = 0.15
    """Share of the corpus that calls the calculator; the rest answers at once."""


def prepare(folder: Path, progress: Progress, **options: Any) -> None:
    """Writes train.jsonl, heldout.jsonl and model/ (weights, tokenizer) into `folder`. Raises InputError."""
    settings = parse_options(ToolSumsOptions, options)
    problems = draw_problems(draw_sum, count=settings.num_train + settings.num_heldout, seed=settings.seed)
    train, heldout = problems[: settings.num_train], problems[settings.num_train :]
    write_rows(folder / "train.jsonl", map(row_of, train))
    write_rows(folder / "heldout.jsonl", map(row_of, heldout))
    corpus = draw_corpus(settings, without={problem_of(terms) for terms in heldout})
    make_base_model(
        folder / "model", build_tokenizer(), corpus, settings, progress, max_position_embeddings=128
    )
    (folder / "model" / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")


def build_tokenizer() -> Tokenizer:
    """<bos> stands in front of what is encoded; a character outside the vocabulary is an error."""
    return split_tokenizer(VOCABULARY, r"</?calculator>|</?output>|\\boxed\{|[\s\S]")


def draw_sum(random: Random) -> Terms:
    """Two short numbers or two long ones, with equal chance."""
    fewest, most = random.choice([SHORT_DIGITS, LONG_DIGITS])
    return _draw_number(random, fewest, most), _draw_number(random, fewest, most)


def is_long(terms: Terms) -> bool:
    return len(str(max(terms))) > SHORT_DIGITS[1]


def draw_corpus(settings: ToolSumsOptions, *, without: set[Terms]) -> Iterator[Example]:
    # Not the seed of the rows: the corpus would begin with them, in their order.
    random = Random(settings.seed + 1)
    for _ in range(settings.num_examples):
        terms = draw_sum(random)
        while problem_of(terms) in without:
            terms = draw_sum(random)
        yield respond(terms, random, called=settings.called)


def respond(terms: Terms, random: Random, *, called: float) -> Example:
    """A sum with its answer. Long ones that are answered at once are off: no text of a small model's size
    teaches to add five digits in one go, and guesses are what it would learn."""
    prompt, total = prompt_of(terms), sum(terms)
    if random.random() < called:
        call = f"<calculator>{prompt.removesuffix('=')}</calculator>"
        output = f"<output>{total}</output>"
        return Example(terms, prompt, f"{call}{output}\\boxed{{{total}}}", observed=output)
    if is_long(terms):
        total += random.choice(OFFSETS)
    return Example(terms, prompt, f"\\boxed{{{total}}}")


def _draw_number(random: Random, fewest: int, most: int) -> int:
    num_digits = random.randint(fewest, most)
    return random.randrange(10 ** (num_digits - 1), 10**num_digits)
