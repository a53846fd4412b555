"""`asyncrl keys [KEY]`: prints what a recipe may set, as Markdown."""

import argparse
import sys

from asyncrl.errors import InputError
from asyncrl.recipe.keys import markdown

HELP = "Print every key of a recipe with its kind, default and documentation."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("key", nargs="?", help="only this section or key, such as rollout.interrupt")


def run(arguments: argparse.Namespace) -> int:
    try:
        print(markdown(arguments.key))
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    return 0
