"""`asyncrl prompt RECIPE [--row N] [--heldout]`: prints what the model is asked, what ends its answer, what
answers its turns, and which agent asks it."""

import argparse
import contextlib
import itertools
import json
import sys

from rich.console import Console
from rich.text import Text

from asyncrl.commands.arguments import add_recipe
from asyncrl.commands.parser import whole
from asyncrl.data.row_use import RowUse
from asyncrl.data.rows import Row, Unanswered, grader_of, heldout_rows, train_rows
from asyncrl.errors import InputError
from asyncrl.launch.prepare import fetch_model
from asyncrl.model.folder import read_shape
from asyncrl.model.source import model_folder
from asyncrl.model.tokenizer import TextCodec
from asyncrl.recipe import Recipe
from asyncrl.recipe.file import load_recipe
from asyncrl.rollout.agents.kit import agent_in_short, check_agent
from asyncrl.run.folder import RunFolder
from asyncrl.tasks.demonstration import Pair, Part
from asyncrl.tasks.demonstrations import DemonstrationReader
from asyncrl.tasks.openings import Openings
from asyncrl.tasks.row_choice import RowChoice, WantedRows
from asyncrl.tasks.task_list import template_of
from asyncrl.tasks.verifier_cache import VerifierCache
from asyncrl.turns.kit import read_kit, turn_lines
from verifiers.golds import parse_gold

HELP = "Print exactly what the model sees of one row: text, tokens, what stops it, the gold and its verifier."
EXAMPLES = (
    "asyncrl prompt recipes/r1_zero_arithmetic_cpu.yaml",
    "asyncrl prompt recipes/r1_zero_arithmetic_cpu.yaml --heldout --row 3 --tokens",
)


# In a terminal that has no colors, or in a file, the learned parts stand between marks.
LEARNED = "black on green"
MARKS = ("[learned:", "]")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_recipe(parser)
    parser.add_argument(
        "--row",
        type=whole(1),
        default=1,
        metavar="N",
        help="which row, counted from 1 over those that data.filter keeps",
    )
    parser.add_argument("--heldout", action="store_true", help="a row of data.heldout, not of data.train")
    parser.add_argument("--tokens", action="store_true", help="list the tokens: id and text of each")


def run(arguments: argparse.Namespace) -> int:
    """0. Raises InputError."""
    recipe = load_recipe(arguments.recipe, arguments.overrides)
    # The output of a verifier is no part of the answer.
    with contextlib.redirect_stdout(sys.stderr):
        text = _text(recipe, arguments.row, is_heldout=arguments.heldout, has_tokens=arguments.tokens)
    print(text)
    return 0


def _text(recipe: Recipe, number: int, *, is_heldout: bool, has_tokens: bool) -> str:
    recipe = fetch_model(recipe)
    if recipe.learns_from_rows():
        return _learned_text(recipe, number, is_heldout=is_heldout, has_tokens=has_tokens)
    row, num_left_out = find_row(recipe, number, is_heldout=is_heldout)
    if isinstance(row, Unanswered):
        raise InputError(row.complaint)
    is_filtered = recipe.data.filter is not None and not is_heldout
    rendered = RunFolder(recipe.folder()).rendering_time()
    rollout = recipe.evaluation.rollout_of(recipe.rollout) if is_heldout else recipe.rollout
    kit = read_kit(recipe, model_folder(recipe.model), rollout=rollout, now=rendered)
    codec = kit.codec
    template = template_of(recipe)
    row = Openings(recipe.verifying.own_files()).opened(row)
    try:
        prompt = row.prompt if template is None else template(row.prompt)
        check_agent(recipe, codec)
        if recipe.agent.is_on() and isinstance(prompt, str):
            # As the file with its task has it.
            prompt = [{"role": "user", "content": prompt}]
        _, tokens = codec.render_prompt(prompt)
    except InputError as error:
        raise InputError(f"{row.where}: {error}") from error
    written = recipe.prompt.template if recipe.prompt is not None else None
    name = "none" if written is None else _quoted(written)
    given = recipe.chat_template_kwargs()
    options = f" {json.dumps(dict(row.verifier.options), default=str)}" if row.verifier.options else ""
    kept = f"row {number} of those that it keeps; it leaves out {num_left_out} before it"
    lines = [
        f"row        {row.where}",
        *([f"filter     {recipe.data.filter}: {kept}"] if is_filtered else []),
        f"template   {name}",
        *([f"told       {_quoted(given)}"] if given else []),
        f"prompt     {len(tokens)} tokens, between the lines:",
        "-" * 80,
        # Decoded from the tokens: what the tokenizer adds is seen, too.
        codec.exact_text(tokens),
        "-" * 80,
        *(["tokens", *(f"{each:>9}  {_quoted(codec.piece(each))}" for each in tokens)] if has_tokens else []),
        f"stops at   {_stops(recipe, codec, is_heldout=is_heldout)}",
        *(
            turn_lines(kit, recipe.turns, is_rendered=recipe.renders_history())
            if recipe.turns.is_on()
            else []
        ),
        *_agent_lines(recipe),
        f"gold       {_quoted(row.answer)}",
        *([] if row.environment is None else [f"turns of   {row.environment.name}"]),
        f"verifier   {row.verifier.name}{options}{_complaint(recipe, row)}",
    ]
    return "\n".join(lines)


def _agent_lines(recipe: Recipe) -> list[str]:
    agent = recipe.agent
    if not agent.is_on():
        return []
    columns = ", ".join(agent.columns) or "none"
    return [
        f"agent      {agent_in_short(agent)}",
        "           The text above is a first call with the row's messages; what it asks is its own.",
        f"           It gets the messages, and these columns of the row: {columns} (agent.columns)",
    ]


def find_row(recipe: Recipe, number: int, *, is_heldout: bool) -> tuple[Row | Unanswered, int]:
    """Row `number`, counted from 1 over the rows that data.filter keeps, and how many it leaves out before.
    Raises InputError."""
    if is_heldout and recipe.data.heldout is None:
        raise InputError("--heldout is given, but the recipe has no data.heldout.")
    if number < 1:
        raise InputError(f"--row is {number}, expected 1 or more.")
    choice = RowChoice() if is_heldout else RowChoice(recipe.data.row_filter())
    use = RowUse(recipe.turns, picked=choice.columns())
    if is_heldout:
        key, read = (
            "data.heldout",
            heldout_rows(recipe.data, recipe.verifying, use, grader_of(recipe.evaluation)),
        )
    else:
        key, read = "data.train", train_rows(recipe.data, recipe.verifying, use)
    rows, count = WantedRows(read, choice), 0
    for count, row in enumerate(itertools.islice(rows, number), start=1):
        if count == number:
            return row, rows.num_left_out
    kept = f" that data.filter keeps, of {count + rows.num_left_out}" if choice.filter else ""
    raise InputError(f"--row is {number}, but {key} has {count} rows{kept}.")


def _stops(recipe: Recipe, codec: TextCodec, *, is_heldout: bool) -> str:
    own = recipe.evaluation.max_new_tokens if is_heldout else None
    section, limit = ("rollout", recipe.rollout.max_new_tokens) if own is None else ("evaluation", own)
    stops = [f"{codec.piece(token)} ({token})" for token in codec.stop_token_ids]
    stops += map(_quoted, codec.stop.strings)
    return f"{', '.join(stops)}, or after {limit} tokens ({section}.max_new_tokens)"


def _complaint(recipe: Recipe, row: Row) -> str:
    """The verifier's complaint about the gold."""
    verifiers = VerifierCache(recipe.verifying.own_files())
    try:
        parse_gold(verifiers.get(row.verifier), row.answer)
    except ValueError as error:
        return f", which cannot parse the gold: {error}"
    finally:
        verifiers.close()
    return ""


def _learned_text(recipe: Recipe, number: int, *, is_heldout: bool, has_tokens: bool) -> str:
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
            _text_prompt_learned(codec, line.parts, is_colored=is_colored),
            "-" * 80,
            *(_token_lines(codec, line.parts) if has_tokens else []),
        ]
    return "\n".join(lines)


def _text_prompt_learned(codec: TextCodec, parts: tuple[Part, ...], *, is_colored: bool) -> str:
    texts = [(codec.exact_text(part.tokens.tolist()), part.is_learned) for part in parts]
    if not is_colored:
        return "".join(f"{MARKS[0]}{text}{MARKS[1]}" if is_learned else text for text, is_learned in texts)
    console = Console(force_terminal=True, highlight=False, soft_wrap=True)
    with console.capture() as captured:
        console.print(Text.assemble(*((text, LEARNED if is_learned else "") for text, is_learned in texts)))
    return captured.get().rstrip("\n")


def _token_lines(codec: TextCodec, parts: tuple[Part, ...]) -> list[str]:
    rows = [(token, "learned" if part.is_learned else "context") for part in parts for token in part.tokens]
    return [f"{use:>9}  {token:>7}  {_quoted(codec.exact_text([token]))}" for token, use in rows]


def _quoted(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
