"""`asyncrl algorithms [NAME]`: prints the loss terms and presets of a recipe, as Markdown tables."""

import argparse
import importlib

from asyncrl.errors import InputError, did_you_mean
from asyncrl.recipe.presets import PRESETS
from asyncrl.recipe.presets import markdown as presets_markdown

HELP = "Print every term of the loss (formula, measurement, use, failure, source) and every preset."
EXAMPLES = (
    "asyncrl algorithms | less",
    "asyncrl algorithms truncated",
    "asyncrl algorithms surrogate",
    "asyncrl algorithms dapo",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="only this term, preset or key of the section algorithm")


def run(arguments: argparse.Namespace) -> int:
    print(markdown(arguments.name), end="")
    return 0


def markdown(asked: str | None) -> str:
    """Terms and presets, or only those named `asked`. Raises InputError when there is none of that name."""
    # The losses import torch, which no command does before it needs it.
    catalog = importlib.import_module("asyncrl.algorithms.catalog")
    parts = [catalog.markdown(asked)]
    if asked is None or asked in PRESETS or asked.removeprefix("algorithm.") == "preset":
        parts.append(f"### `algorithm.preset`\n\n{presets_markdown(asked if asked in PRESETS else None)}\n")
    text = "\n".join(part for part in parts if part)
    if not text:
        names = {
            *catalog.SECTIONS,
            *PRESETS,
            *(name for terms in catalog.SECTIONS.values() for name in terms),
        }
        meant = did_you_mean(str(asked), names, " `asyncrl algorithms` prints all of them.")
        raise InputError(f"There is no term, preset or key named {asked}.{meant}")
    return text
