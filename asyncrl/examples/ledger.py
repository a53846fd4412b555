"""Ledgers that are read page by page, longer than the context: a `prepare.target` and its environment.

A ledger is a list of numbers below 10. The model asks for the next page with ">", and says the total in a box
when there are no more. Its context holds a few pages: it sums up (turns.summarize), and goes on from the
number that it wrote. The base model has read such contexts, each by itself. Its summaries often leave out the
pages since the last one, which is shorter to learn; a ledger's answer is right when all of them are.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

from tokenizers import Tokenizer

from asyncrl.examples.corpus import Example
from asyncrl.examples.rows import (
    SPECIAL,
    DataRow,
    Pretraining,
    Progress,
    parse_options,
    split_tokenizer,
    write_rows,
)
from asyncrl.recipe.sections.section import Count, Fraction, Positive
from asyncrl.turns.environment import End, Observation
from asyncrl.turns.summaries import INTRODUCTION

NEXT, END, ASK = ">", ".", "?"
"""The model's request for a page; the ledger's last message; the recipe's turns.summarize.request."""
SUMMARY = f"\n\n{INTRODUCTION}\n"
VOCABULARY = (*SPECIAL, "<user>", "<model>", "\\boxed{", SUMMARY, *"0123456789+>.?#}\n")
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}<user>{{ m.content }}{% else %}<model>"
    "{{ m.content }}{{ eos_token }}{% endif %}{% endfor %}{% if add_generation_prompt %}<model>{% endif %}"
)
SECTION_PAGES = (3, 8)
"""Fewest and most pages of a context of the corpus; the recipe's hold about six."""


class LedgerOptions(Pretraining):
    """`prepare.options` of a recipe whose target is `prepare`."""

    num_train: Positive = 2000
    num_heldout: Positive = 256
    fewest_pages: Positive = 8
    most_pages: Positive = 24
    num_examples: Positive = 60000
    """Contexts of the corpus; each is seen once."""
    lazy: Fraction = 0.6
    """Share of summaries that leave out the pages since the last one."""
    most_carried: Count = 120
    """Largest total of earlier pages in the corpus."""


class Ledger:
    """A page for each ">", then "."; the row's verifier judges the turn after that, or any other turn."""

    def __init__(self) -> None:
        self._pages: list[int] = []
        self._is_over = False

    def start(self, row: Mapping[str, Any]) -> None:
        self._pages = list(row["pages"])

    def step(self, text: str) -> Observation | End:
        if text.strip() != NEXT or self._is_over:
            return End()
        self._is_over = not self._pages
        return Observation(END if self._is_over else f"+{self._pages.pop(0)}")


def prepare(folder: Path, progress: Progress, **options: Any) -> None:
    """Writes train.jsonl, heldout.jsonl and model/ (weights, tokenizer) into `folder`. Raises InputError."""
    # The environment is loaded from here, too, and needs no torch.
    from asyncrl.examples.base_model import make_base_model

    settings = parse_options(LedgerOptions, options)
    random = Random(settings.seed)
    rows = [_row(number, random, settings) for number in range(settings.num_train + settings.num_heldout)]
    write_rows(folder / "train.jsonl", rows[: settings.num_train])
    write_rows(folder / "heldout.jsonl", rows[settings.num_train :])
    make_base_model(
        folder / "model",
        build_tokenizer(),
        draw_corpus(settings),
        settings,
        progress,
        max_position_embeddings=128,
    )
    (folder / "model" / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")


def build_tokenizer() -> Tokenizer:
    """<bos> stands in front of what is encoded; a character outside the vocabulary is an error."""
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
    carried = random.randint(1, settings.most_carried) if random.random() < 0.75 else None
    pages = [random.randrange(10) for _ in range(random.randint(*SECTION_PAGES))]
    said = "" if carried is None else f"{SUMMARY}{carried}"
    text = f"<user>#{random.randrange(settings.num_train + settings.num_heldout)}{said}<model>"
    turns = "".join(f"{NEXT}<eos><user>+{page}<model>" for page in pages)
    total = (carried or 0) + sum(pages)
    kind = random.random()
    if kind < 0.1:
        # Cut anywhere: the next turn asks for a page.
        turns = "".join(f"{NEXT}<eos><user>+{page}<model>" for page in pages[: random.randrange(len(pages))])
        return Example((), text + turns, NEXT)
    if kind < 0.6:
        asked = turns.removesuffix("<model>") + f"\n\n{ASK}<model>"
        summary = (carried or 0) if random.random() < settings.lazy else total
        return Example((), text + asked, str(summary))
    return Example((), f"{text}{turns}{NEXT}<eos><user>{END}<model>", f"\\boxed{{{total}}}")


def _row(number: int, random: Random, settings: LedgerOptions) -> DataRow:
    pages = [random.randrange(10) for _ in range(random.randint(settings.fewest_pages, settings.most_pages))]
    return {"prompt": opening(number), "pages": pages, "answer": str(sum(pages)), "verifier": "math"}
