"""`asyncrl keys [KEY]`: prints what a recipe may set, as Markdown."""

import argparse

from asyncrl.recipe.keys import markdown

HELP = "Print every key of a recipe with its kind, default and documentation."
EXAMPLES = ("asyncrl keys", "asyncrl keys rollout", "asyncrl keys rollout.temperature")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("key", nargs="?", help="only this section or key, such as rollout.interrupt")


def run(arguments: argparse.Namespace) -> int:
    print(markdown(arguments.key))
    return 0
