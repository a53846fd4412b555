"""`asyncrl algorithms`: prints the terms a recipe's algorithm section may name, as Markdown tables."""

import argparse
import importlib

HELP = "Print every advantage, weight, rejection, surrogate and reduction: formula, use, failure, source."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """It takes none."""


def run(arguments: argparse.Namespace) -> int:
    # The losses import torch, which a command must not do before it is asked to.
    print(importlib.import_module("asyncrl.algorithms.catalog").markdown(), end="")
    return 0
