"""Parts that all examples share: options, data files of a task, the tokenizer."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, NotRequired, TypedDict, TypeVar

from pydantic import ValidationError
from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from tokenizers.processors import TemplateProcessing

from asyncrl.errors import InputError
from asyncrl.examples.arithmetic import Terms
from asyncrl.recipe.sections.section import Count, Positive, PositiveFloat, Section

Progress = Callable[[str, int, int], None]
"""(stage, done, total), called often enough for a bar."""
OptionsOf = TypeVar("OptionsOf", bound=Section)


class Pretraining(Section):
    """The options of every target that makes a base model."""

    examples_per_batch: Positive = 128
    matrix_learning_rate: PositiveFloat = 0.03
    """Rate of the matrices inside the layers, by Muon. Both rates warm up, then fall to a tenth (cosine)."""
    learning_rate: PositiveFloat = 2e-3
    """Rate of embeddings, head and norms, by AdamW."""
    seed: Count = 0
    """Seed of the problems, the corpus, the initial weights and the order of the batches."""


def parse_options(kind: type[OptionsOf], options: dict[str, Any]) -> OptionsOf:
    """`prepare.options` as the target's own section. Raises InputError that names the key."""
    try:
        return kind.model_validate(options)
    except ValidationError as error:
        details = error.errors()[0]
        key = ".".join(map(str, details["loc"]))
        known = ", ".join(kind.model_fields)
        raise InputError(f"prepare.options.{key}: {details['msg']}. Options: {known}.") from None


Draw = Callable[[Random], Terms]
Problem = tuple[int, ...]
"""Identity of a problem: its terms in ascending order, so 12+34 is 34+12."""


class DataRow(TypedDict):
    """One line of a data file."""

    prompt: str
    answer: object
    """As the verifier wants it."""
    verifier: NotRequired[str]
    """Else `verifying.default`, with its options."""
    size: NotRequired[int]
    """How hard the row is, for data.selection."""


def draw_problems(draw: Draw, *, count: int, seed: int) -> list[Terms]:
    """`count` sums, no problem twice; the same seed gives the same list."""
    random, seen, drawn = Random(seed), set[Problem](), list[Terms]()
    while len(drawn) < count:
        terms = draw(random)
        if problem_of(terms) not in seen:
            seen.add(problem_of(terms))
            drawn.append(terms)
    return drawn


def problem_of(terms: Terms) -> Problem:
    return tuple(sorted(terms))


def prompt_of(terms: Terms) -> str:
    return "+".join(map(str, terms)) + "="


def row_of(terms: Terms, write_prompt: Callable[[Terms], str] = prompt_of) -> DataRow:
    return {"prompt": write_prompt(terms), "answer": str(sum(terms)), "verifier": "math"}


def write_rows(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


# Writes the files that `tokenizers` and `transformers` load. Encoding puts <bos> in front, always, by the
# tokenizer's own post-processor: so every program that encodes a prompt gets the same ids. Decoding without
# the special tokens gives the text back to the letter. A character outside the vocabulary is an error.
BOS, EOS, PAD = "<bos>", "<eos>", "<pad>"
SPECIAL = (BOS, EOS, PAD)
"""Ids 0, 1 and 2."""
MARKERS = ("<think>", "</think>", "\\boxed{")
"""Ordinary tokens, not special ones: decoding must never skip them."""
CHARACTERS = "0123456789+-*/=;:,.()?! }\n"
VOCABULARY = (*SPECIAL, *MARKERS, *CHARACTERS)
"""32 tokens; the place is the id. A task may add characters of its own behind them."""
BOS_ID, EOS_ID, PAD_ID = range(3)


def build_tokenizer(extra: str = "") -> Tokenizer:
    """The tokenizer of VOCABULARY and the characters of `extra`."""
    return split_tokenizer((*VOCABULARY, *extra), r"<think>|</think>|\\boxed\{|[\s\S]")


def split_tokenizer(vocabulary: Sequence[str], pattern: str) -> Tokenizer:
    """A token per match of `pattern`; ids are places in `vocabulary`, which begins with SPECIAL."""
    tokenizer = Tokenizer(WordLevel({token: index for index, token in enumerate(vocabulary)}))
    tokenizer.pre_tokenizer = Split(Regex(pattern), behavior="isolated")
    tokenizer.decoder = Fuse()
    tokenizer.add_special_tokens(list(SPECIAL))
    # Without a first token that is always the same, a small model learns where a digit stands far later.
    tokenizer.post_processor = TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, BOS_ID)])
    return tokenizer


def write_tokenizer(folder: Path, tokenizer: Tokenizer) -> None:
    """tokenizer.json and the two files that tell transformers which tokens are special."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {"bos_token": BOS, "eos_token": EOS, "pad_token": PAD}
    configuration = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        # transformers would otherwise drop spaces before punctuation when it decodes.
        "clean_up_tokenization_spaces": False,
        **special,
    }
    for name, content in [("tokenizer_config", configuration), ("special_tokens_map", special)]:
        (folder / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
