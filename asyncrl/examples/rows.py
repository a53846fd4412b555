"""Parts that all examples share: additions and how one works them, data files of a task, the tokenizer, the
noisy pre-training text of a sum task.

The text is mostly direct answers, often wrong; some are worked. A base model trained on it knows both ways of
answering and prefers the bad one, which reinforcement learning can fix. No torch.
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
from asyncrl.recipe.sections.section import Count, Positive, PositiveFloat, Section

Terms = tuple[int, ...]
"""Numbers to add, in the order of the prompt."""


def draw_addition(random: Random) -> Terms:
    """Two numbers, each of 2, 3 or 4 digits with equal chance, independently."""
    return _draw_number(random), _draw_number(random)


def work_addition(terms: Terms, random: Random, noise: float) -> tuple[str, int]:
    """The working of `terms` and the sum it comes to: "7+5+0=12;4+8+1=13;3+0+1=4", 432.

    A column reads digit+digit+carry=column sum; a column's digit and carry are taken from the column sum
    as it is written. So each step that `noise` (a probability) puts off by one makes the result wrong,
    and the text is consistent with the result all the same.
    """
    columns = add_columns(terms[0], terms[1], random, noise)
    first, second = digits_from_right(terms[0]), digits_from_right(terms[1])
    carries = [0, *(column // 10 for column in columns)]
    steps = [
        f"{_digit(first, place)}+{_digit(second, place)}+{carries[place]}={column}"
        for place, column in enumerate(columns)
    ]
    return ";".join(steps), read_columns(columns)


def add_columns(first: int, second: int, random: Random, noise: float) -> list[int]:
    """Column sums from the right, carry included; each is off by one with probability `noise`."""
    one, other = digits_from_right(first), digits_from_right(second)
    columns: list[int] = []
    for place in range(max(len(one), len(other))):
        carry = columns[-1] // 10 if columns else 0
        column = _digit(one, place) + _digit(other, place) + carry
        if random.random() < noise:
            # A zero can only be off upwards: a negative column has no digit and no carry.
            column += random.choice([-1, 1]) if column else 1
        columns.append(column)
    return columns


def read_columns(columns: list[int]) -> int:
    """The number that column sums from the right stand for, last carry included: [12, 13, 4] -> 432."""
    total = columns[-1]
    for column in reversed(columns[:-1]):
        total = total * 10 + column % 10
    return total


def digits_from_right(number: int) -> list[int]:
    return [int(digit) for digit in reversed(str(number))]


def _digit(digits: list[int], place: int) -> int:
    return digits[place] if place < len(digits) else 0


def _draw_number(random: Random) -> int:
    num_digits = random.choice([2, 3, 4])
    return random.randrange(10 ** (num_digits - 1), 10**num_digits)


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


Work = Callable[[Terms, Random, float], tuple[str, int]]
"""(terms, random, noise) -> the working and the sum it comes to."""
OFFSETS = (-100, -10, -1, 1, 10, 100)
"""How far a wrong direct answer is off."""


@dataclass(frozen=True, slots=True)
class Mix:
    """Make-up of the corpus, as probabilities."""

    direct: float = 0.75
    """An answer without working; the others are worked inside <think>."""
    wrong: float = 0.5
    """A direct answer is off by 1, 10 or 100."""
    noise: float = 0.03
    """A step of a working is off by one."""


@dataclass(frozen=True, slots=True)
class Example:
    terms: Terms
    prompt: str
    response: str
    observed: str = ""
    """The part of the response that a tool writes: context, which is not learned."""


def draw_examples(
    draw: Draw,
    work: Work,
    *,
    mix: Mix,
    count: int,
    seed: int,
    without: Collection[Problem],
    write_prompt: Callable[[Terms], str] = prompt_of,
) -> Iterator[Example]:
    """`count` examples, none of a problem in `without`; the same seed gives the same ones."""
    random = Random(seed)
    for _ in range(count):
        terms = draw(random)
        while problem_of(terms) in without:
            terms = draw(random)
        yield Example(terms, write_prompt(terms), _respond(terms, work, mix, random))


def _respond(terms: Terms, work: Work, mix: Mix, random: Random) -> str:
    if random.random() < mix.direct:
        total = sum(terms)
        if random.random() < mix.wrong:
            # No sum is negative, and an answer that is would be known as wrong without adding.
            total += random.choice([offset for offset in OFFSETS if total + offset > 0])
        return f"\\boxed{{{total}}}"
    working, total = work(terms, random, mix.noise)
    return f"<think>{working}</think>\\boxed{{{total}}}"
