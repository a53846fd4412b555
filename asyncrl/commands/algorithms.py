"""`asyncrl algorithms`: prints the loss terms that a recipe may name, as Markdown tables."""

import argparse
import importlib

HELP = "Print every term of the loss: formula, what was measured of it, use, failure, source."
EXAMPLES = (
    "asyncrl algorithms",
    "asyncrl algorithms | less",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No arguments."""


def run(arguments: argparse.Namespace) -> int:
    # The losses import torch, which no command does before it needs it.
    print(importlib.import_module("asyncrl.algorithms.catalog").markdown(), end="")
    return 0
