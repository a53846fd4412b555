"""Makes a base model for tasks that the run takes from a gym of reasoning-gym: a `prepare.target`.

The same small model and plain next-token training as base_model.py, on the answers of chain_sum.py, with a
tokenizer that knows the question. Not a trainer to build on."""

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from asyncrl.data.gym import gym_rows
from asyncrl.examples.base_model import make_base_model
from asyncrl.examples.chain_sum import draw_answers
from asyncrl.examples.options import Pretraining, Progress, parse_options
from asyncrl.examples.tokenizer import SPECIAL, split_tokenizer
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


def prepare(folder: Path, progress: Progress, **options: Any) -> None:
    """Writes model/ (weights, tokenizer) into `folder`. Raises InputError, also without reasoning-gym."""
    settings = parse_options(ChainSumOptions, options)
    heldout = set(_questions(settings, settings.heldout_seed, settings.heldout_size))
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
