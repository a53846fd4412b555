"""Makes games of Countdown and a base model that has read arithmetic, but no game: a `prepare.target`.

The same small model and plain next-token training as base_model.py, on the lines of equation_text.py, with a
token per number. Not a trainer to build on."""

from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

from tokenizers import Tokenizer

from asyncrl.examples.base_model import make_base_model
from asyncrl.examples.corpus import Example
from asyncrl.examples.countdown import row_of, solvable_games
from asyncrl.examples.equation_text import VALUES, LineMix, draw_lines
from asyncrl.examples.rows import SPECIAL, Pretraining, Progress, parse_options, split_tokenizer, write_rows
from asyncrl.recipe.sections.section import Positive

TAGS = ("<answer>", "</answer>")
WORDS = (" is ", " not ")
CONTEXT_TOKENS = 192
BATCHES_SORTED = 16
"""Batches whose lines are sorted by length together."""
VOCABULARY = (*SPECIAL, *TAGS, *WORDS, *"+-*()=;: ", *map(str, VALUES))


class CountdownOptions(Pretraining):
    """`prepare.options` of a recipe whose target is `prepare`."""

    examples_per_batch: Positive = 64
    num_heldout: Positive = 256
    """Rows of heldout.jsonl; all other games are rows of train.jsonl."""
    num_lines: Positive = 20000
    """Lines of the corpus; each is seen once."""
    hidden_size: Positive = 96


def prepare(folder: Path, progress: Progress, **options: Any) -> None:
    """Writes train.jsonl, heldout.jsonl and model/ (weights, tokenizer) into `folder`. Raises InputError."""
    settings = parse_options(CountdownOptions, options)
    random, games = Random(settings.seed), solvable_games()
    random.shuffle(games)
    heldout, train = games[: settings.num_heldout], games[settings.num_heldout :]
    write_rows(folder / "train.jsonl", (row_of(game, random) for game in train))
    write_rows(folder / "heldout.jsonl", (row_of(game, random) for game in heldout))
    lines = draw_lines(LineMix(), count=settings.num_lines, seed=settings.seed + 1, without=heldout)
    make_base_model(
        folder / "model",
        build_tokenizer(),
        batch_by_length(lines, settings.examples_per_batch, random),
        settings,
        progress,
        max_position_embeddings=CONTEXT_TOKENS,
        hidden_size=settings.hidden_size,
    )


def batch_by_length(lines: Iterable[Example], examples_per_batch: int, random: Random) -> list[Example]:
    """Lines in an order whose batches hold similar lengths, the batches shuffled: without it a batch is seven
    micro-batches of other lengths, whose calls take longer than their arithmetic."""
    ordered, batches = list(lines), list[list[Example]]()
    for start in range(0, len(ordered), BATCHES_SORTED * examples_per_batch):
        pool = ordered[start : start + BATCHES_SORTED * examples_per_batch]
        pool.sort(key=lambda line: len(line.response))
        batches += [pool[at : at + examples_per_batch] for at in range(0, len(pool), examples_per_batch)]
    # A smaller one stays the last one, or those behind it would be cut elsewhere.
    random.shuffle(rest := batches[:-1])
    return [line for batch in (*rest, batches[-1]) for line in batch]


def build_tokenizer() -> Tokenizer:
    """<bos> stands in front of what is encoded; what is no token is an error."""
    words = "|".join(WORDS)
    return split_tokenizer(VOCABULARY, rf"</?answer>|{words}|\d+|[\s\S]")
