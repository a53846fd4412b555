"""The options of `asyncrl select`, read and checked without a look at the run."""

import argparse
from dataclasses import dataclass
from pathlib import Path

from asyncrl.commands.verify import parse_settings
from asyncrl.errors import InputError
from asyncrl.readers.audit.golds import OtherGrader
from asyncrl.readers.selection.choices import Choice, Rules, find_choice
from asyncrl.readers.selection.filters import Filters, parse_range, parse_scores
from asyncrl.readers.selection.output import check_output
from asyncrl.recipe.file import absolute_object


@dataclass(frozen=True, slots=True)
class Request:
    choice: Choice
    rules: Rules
    filters: Filters
    other: OtherGrader | None

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> "Request":
        """Raises InputError."""
        for option, is_given in (("--all-rows", arguments.all_rows), ("--at", arguments.at is not None)):
            if is_given and arguments.n is None and not (option == "--at" and arguments.compacted):
                raise InputError(f"{option} is about responses that are generated: give -n, too.")
        choice = find_choice(arguments.choose)
        check_output(arguments.out, replaces=arguments.force)
        filters = Filters(
            parse_range("--steps", arguments.steps, least=1),
            parse_range("--versions", arguments.versions, least=0),
            parse_range("--length", arguments.length, least=0),
            frozenset(arguments.source),
            parse_range("--rows", arguments.rows, least=1),
        )
        return cls(choice, Rules(*parse_scores(arguments.score), arguments.limit), filters, _other(arguments))


def _other(arguments: argparse.Namespace) -> OtherGrader | None:
    try:
        options = parse_settings(arguments.settings)
    except ValueError as error:
        raise InputError(str(error)) from error
    if arguments.verifier is None and not options:
        return None
    return OtherGrader(arguments.verifier and absolute_object(arguments.verifier, Path.cwd()), options)
