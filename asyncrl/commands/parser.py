"""The parser of a subcommand: what it refuses is an InputError, with the nearest option or choice."""

import argparse
import re
import shutil
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from asyncrl.errors import InputError, did_you_mean
from asyncrl.system.paths import expanded

_BOUND = re.compile(r"^argument (\S+): is ")
_CHOICE = re.compile(r"invalid choice: '(.*)' \(choose from (.*)\)")
_UNKNOWN = "unrecognized arguments: "


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Raises InputError."""
        said = message.removesuffix(".")
        if _BOUND.match(said) is not None:
            # As argparse says it: "argument --k: is 0, expected more than 0".
            raise InputError(_BOUND.sub(r"\1 is ", said) + ".")
        end = self._meant(message) or f" `{self.prog} --help` shows what it takes."
        raise InputError(f"{self.prog}: {said}.{end}")

    def _meant(self, message: str) -> str:
        if (choice := _CHOICE.search(message)) is not None:
            return did_you_mean(choice[1], re.findall(r"[^\s',]+", choice[2]))
        if not message.startswith(_UNKNOWN):
            return ""
        word = message.removeprefix(_UNKNOWN).split()[0].partition("=")[0]
        if meant := did_you_mean(word, self._option_string_actions):
            return meant
        if word.startswith("--") and self.get_default("overrides") is not None:
            from asyncrl.recipe.complaint import nearest_key

            key = word.removeprefix("--").replace("-", "_")
            if near := nearest_key(key):
                return f"{near} A key is changed without dashes, as section.key=value."
        return ""


def parser_of(name: str, command: ModuleType) -> Parser:
    """The parser of a subcommand. Its help ends with the examples, a line each."""
    parser = Parser(
        prog=f"asyncrl {name}",
        description=textwrap.fill(command.HELP, max(40, shutil.get_terminal_size().columns - 2)),
        epilog="\n  ".join(("examples:", *command.EXAMPLES)),
        # Of the two texts, neither is wrapped again.
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_arguments(parser)
    return parser


def parse(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    """`words`, options and others in any order; paths with the home folder for a ~ that no shell has
    expanded, as in --out=~/report. Raises InputError; exits after --help."""
    # The sandbox has its own subcommands, and what follows the program belongs to the program.
    is_sandbox = parser.prog == "asyncrl sandbox"
    arguments = parser.parse_args(words) if is_sandbox else parser.parse_intermixed_args(words)
    for name, value in vars(arguments).items():
        if isinstance(value, Path):
            setattr(arguments, name, expanded(value))
        elif isinstance(value, list):
            setattr(arguments, name, [expanded(each) if isinstance(each, Path) else each for each in value])
    return arguments


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """Kind of an option: a whole number within the bounds, both included."""
    expected = "more than 0" if least == 1 else f"{least} or more"
    if most is not None:
        expected = f"{least} to {most}"

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"is {text}, expected a whole number, {expected}") from None
        if value < least or (most is not None and value > most):
            raise argparse.ArgumentTypeError(f"is {text}, expected {expected}")
        return value

    return read


def number(*, above: float | None = None, least: float | None = None) -> Callable[[str], float]:
    """Kind of an option: a finite number `above` one, or of at `least` one."""
    expected = f"more than {above:g}" if above is not None else f"{least:g} or more"

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"is {text}, expected a number, {expected}") from None
        is_low = (above is not None and value <= above) or (least is not None and value < least)
        if is_low or not value < float("inf"):
            raise argparse.ArgumentTypeError(f"is {text}, expected {expected}")
        return value

    return read
