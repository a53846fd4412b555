"""`asyncrl prompt` of a stage that learns rows: one row as tokens, what is learned of it in color.

In a terminal that has no colors, or in a file, the learned parts stand between marks.
"""

import itertools
import json
import sys

from rich.console import Console
from rich.text import Text

from asyncrl.errors import InputError
from asyncrl.model.folder import read_shape
from asyncrl.model.source import model_folder
from asyncrl.model.tokenizer import TextCodec
from asyncrl.recipe import Recipe
from asyncrl.run.folder import RunFolder
from asyncrl.tasks.demonstration import Pair, Part
from asyncrl.tasks.demonstrations import DemonstrationReader

LEARNED = "black on green"
MARKS = ("[learned:", "]")


def learned_text(recipe: Recipe, number: int, *, is_heldout: bool, has_tokens: bool) -> str:
    """Raises InputError for a row that there is not, and for one that cannot be learned."""
    folder = model_folder(recipe.model)
    shape, rendered = read_shape(folder), RunFolder(recipe.folder()).rendering_time()
    codec = TextCodec(folder, now=rendered, template_arguments=recipe.chat_template_kwargs())
    key, split = ("data.heldout", "test") if is_heldout else ("data.train", "train")
    limit = recipe.model.context_tokens or shape.max_positions
    reader = DemonstrationReader(key, split, recipe, codec, limit, shape.vocab_size)
    sources = recipe.data.heldout_sources() if is_heldout else recipe.data.train_sources()
    rows = ((row, source) for source in sources for row in reader.rows(source) if reader.is_wanted(row))
    found = next(itertools.islice(rows, number - 1, None), None) if number > 0 else None
    if found is None:
        raise InputError(f"--row is {number}, but {key} has no such row.")
    row, source = found
    made = reader.demonstration(row, source)
    is_colored = sys.__stdout__ is not None and sys.__stdout__.isatty()
    shown = "in color" if is_colored else f"between {MARKS[0]} and {MARKS[1]}"
    lines = [f"row        {row.where}"]
    titles = ("chosen", "rejected") if isinstance(made, Pair) else ("tokens",)
    for title, line in zip(titles, made.lines(), strict=True):
        learned = sum(len(part.tokens) for part in line.parts if part.is_learned)
        lines += [
            f"{title:10} {line.num_tokens()} tokens of at most {limit}; {learned} are learned, {shown}:",
            "-" * 80,
            _text(codec, line.parts, is_colored=is_colored),
            "-" * 80,
            *([_table(codec, line.parts)] if has_tokens else []),
        ]
    return "\n".join(lines)


def _text(codec: TextCodec, parts: tuple[Part, ...], *, is_colored: bool) -> str:
    texts = [(codec.exact_text(part.tokens.tolist()), part.is_learned) for part in parts]
    if not is_colored:
        return "".join(f"{MARKS[0]}{text}{MARKS[1]}" if is_learned else text for text, is_learned in texts)
    console = Console(force_terminal=True, highlight=False, soft_wrap=True)
    with console.capture() as captured:
        console.print(Text.assemble(*((text, LEARNED if is_learned else "") for text, is_learned in texts)))
    return captured.get().rstrip("\n")


def _table(codec: TextCodec, parts: tuple[Part, ...]) -> str:
    rows = [(token, part.is_learned) for part in parts for token in part.tokens]
    return "\n".join(
        f"{'learned' if is_learned else 'context':>9}  {token:>7}  "
        f"{json.dumps(codec.exact_text([token]), ensure_ascii=False)}"
        for token, is_learned in rows
    )
