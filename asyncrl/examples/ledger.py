"""Ledgers that are read page by page, longer than the context: a `prepare.target` and its environment.

A ledger is pages of digits, a few of them marked (*7). The model asks for the next page with ">", and says
the last marked digit in a box when there are no more. Its context holds about three pages: it sums up
(turns.summarize), and continues from the digit that it wrote. The base model has read such contexts, each by
itself. Most of its summaries leave out a mark of their own context and repeat the summary before.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from tokenizers import Tokenizer

from asyncrl.examples.rows import (
    SPECIAL,
    Example,
    Pretraining,
    Progress,
    parse_options,
    split_tokenizer,
    write_rows,
)
from asyncrl.recipe.sections.section import Fraction, Positive
from asyncrl.turns.environment import End, Observation
from asyncrl.turns.history import INTRODUCTION

NEXT, END, ASK, NOTHING = ">", ".", "?", "-"
"""The model's request for a page; the ledger's last message; the recipe's turns.summarize.request; a summary
of pages without a mark."""
SUMMARY = f"\n\n{INTRODUCTION}\n"
DIGITS = "0123456789"
VOCABULARY = (*SPECIAL, "<user>", "<model>", "\\boxed{", SUMMARY, *DIGITS, *"*>.?#-}\n")
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}<user>{{ m.content }}{% else %}<model>"
    "{{ m.content }}{{ eos_token }}{% endif %}{% endfor %}{% if add_generation_prompt %}<model>{% endif %}"
)
CONTEXT_PAGES = (1, 4)
"""Fewest and most pages of a context of the corpus; the recipe's hold about three."""


class LedgerOptions(Pretraining):
    """`prepare.options` of a recipe whose target is `prepare`."""

    num_train: Positive = 2000
    num_heldout: Positive = 256
    fewest_pages: Positive = 12
    most_pages: Positive = 16
    most_marks: Positive = 3
    """Marked digits of a ledger at most, each on a page of its own."""
    examples_per_batch: Positive = 64
    num_examples: Positive = 40000
    """Contexts of the corpus; each is seen once."""
    lazy: Fraction = 0.8
    """Share of summaries that leave out a mark of their own context."""


class Ledger:
    """A page for each ">", then "."; the row's verifier judges the turn after that, or any other turn."""

    def __init__(self) -> None:
        self._pages: list[str] = []
        self._is_over = False

    def start(self, row: Mapping[str, Any]) -> None:
        self._pages = list(row["pages"])

    def step(self, text: str) -> Observation | End:
        if text.strip() != NEXT or self._is_over:
            return End()
        self._is_over = not self._pages
        return Observation(END if self._is_over else self._pages.pop(0))


def prepare(folder: Path, progress: Progress, **options: Any) -> None:
    """Writes train.jsonl, heldout.jsonl and model/ (weights, tokenizer) into `folder`. Raises InputError."""
    # The environment is loaded from here, too, and needs no torch.
    from asyncrl.examples.base_model import make_base_model

    settings = parse_options(LedgerOptions, options)
    random = Random(settings.seed)
    rows = [_row(number, random, settings) for number in range(settings.num_train + settings.num_heldout)]
    write_rows(folder / "train.jsonl", rows[: settings.num_train])
    write_rows(folder / "heldout.jsonl", rows[settings.num_train :])
    corpus = draw_corpus(settings)
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
    """A character outside the vocabulary is an error."""
    summary = SUMMARY.replace("\n", "\\n")
    return split_tokenizer(VOCABULARY, rf"{summary}|<user>|<model>|\\boxed\{{|[\s\S]")


def opening(number: int) -> list[dict[str, str]]:
    """The prompt: the ledger's number."""
    return [{"role": "user", "content": f"#{number}"}]


def draw_corpus(settings: LedgerOptions) -> Iterator[Example]:
    # Not the seed of the rows.
    random = Random(settings.seed + 1)
    for _ in range(settings.num_examples):
        yield draw_context(random, settings)


def draw_context(random: Random, settings: LedgerOptions) -> Example:
    """The text of one context up to a turn of the model, and that turn."""
    # The last marked digit of the contexts before it; NOTHING where none was marked.
    carried = random.choice((NOTHING, random.choice(DIGITS), None))
    number = random.randrange(settings.num_train + settings.num_heldout)
    text = f"<user>#{number}{'' if carried is None else SUMMARY + carried}<model>"
    pages, marked = _pages(random, random.randint(*CONTEXT_PAGES), random.choice((0, 0, 1, 1, 2)))
    turns = "".join(f"{NEXT}<eos><user>{page}<model>" for page in pages)
    known = carried or NOTHING
    last = marked[-1] if marked else known
    kind = random.random()
    if kind < 0.1:
        # Cut anywhere: the next turn asks for a page.
        turns = "".join(f"{NEXT}<eos><user>{page}<model>" for page in pages[: random.randrange(len(pages))])
        return Example((), text + turns, NEXT)
    if kind < 0.6:
        asked = f"{turns.removesuffix('<model>')}\n\n{ASK}<model>"
        return Example((), text + asked, known if random.random() < settings.lazy else last)
    return Example((), f"{text}{turns}{NEXT}<eos><user>{END}<model>", f"\\boxed{{{last}}}")


def _row(number: int, random: Random, settings: LedgerOptions) -> dict[str, object]:
    num_pages = random.randint(settings.fewest_pages, settings.most_pages)
    pages, marked = _pages(random, num_pages, random.randint(1, settings.most_marks))
    return {"prompt": opening(number), "pages": pages, "answer": marked[-1], "verifier": "math"}


def _pages(random: Random, num_pages: int, num_marks: int) -> tuple[Sequence[str], Sequence[str]]:
    """Pages of eight digits, and the marked ones in order, at most one of a page."""
    marks = set(random.sample(range(num_pages), min(num_marks, num_pages)))
    pages, marked = [], []
    for place in range(num_pages):
        digits = random.choices(DIGITS, k=8)
        if place in marks:
            chosen = random.randrange(len(digits))
            marked.append(digits[chosen])
            digits[chosen] = f"*{digits[chosen]}"
        pages.append("".join(digits))
    return pages, marked
