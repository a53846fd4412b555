"""`asyncrl verify-data RECIPE`: checks the data of a recipe against its verifiers, before any training.

Every gold must grade correct as its own answer, and wrong answers made from it (a changed digit, the sign,
swapped places, another row's gold) must not. The tests of a code row must pass its own solution, if its gold
has one, and fail programs that do nothing useful. Lists all rows that cannot be verified, by source, and
reports both error rates; golds of letters that may be a word or a product are listed too, and are no
complaint. Rows that data.filter leaves out are counted alone. In place of a recipe it takes a data file.
"""

import argparse
import asyncio
import contextlib
import sys
from pathlib import Path
from typing import NamedTuple

from asyncrl.commands.arguments import add_recipe, check_has_tasks
from asyncrl.commands.parser import whole
from asyncrl.data.row_use import RowUse
from asyncrl.data.rows import Row, grader_of, rows_of
from asyncrl.errors import InputError
from asyncrl.observe.terminal.stage import LateStage
from asyncrl.recipe import Source, Verifying
from asyncrl.recipe.file import absolute, absolute_object, load_recipe
from asyncrl.recipe.sources import EXPECTED, is_data_file
from asyncrl.records import VerifierSpec
from asyncrl.system.words import as_percent
from asyncrl.tasks.row_choice import RowChoice, WantedRows
from asyncrl.tasks.task_list import told_row
from asyncrl.tasks.verifier_cache import VerifierCache
from verifiers.dataset import DataReport, GoldRow, check_rows
from verifiers.pool import VerifierPool

HELP = "Check the data of a recipe against its verifiers: false negatives and false positives."
EXAMPLES = (
    "asyncrl verify-data recipes/r1_zero_arithmetic_cpu.yaml",
    "asyncrl verify-data train.jsonl --verifier math",
)


class _Asked(NamedTuple):
    key: str
    """Key in the recipe."""
    source: Source
    split: str
    """Read where the source names none."""
    grader: VerifierSpec | None = None
    """Verifier of all its rows, where the key names one."""
    choice: RowChoice = RowChoice()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_recipe(parser, help=f"a recipe, or {EXPECTED}")
    parser.add_argument("--columns", help="ready columns of a file, or a function; default: asyncrl")
    parser.add_argument("--verifier", help="verifier of a file's rows that name none; default: math")
    parser.add_argument("--workers", type=whole(1), default=1, help="worker processes")
    parser.add_argument(
        "--list",
        type=whole(0),
        default=20,
        metavar="N",
        help="complaints to print of each kind but broken golds",
    )


def run(arguments: argparse.Namespace) -> int:
    """0 when every row can be verified, 1 when not. Raises InputError."""
    is_clean = True
    try:
        verifying, sources = _asked(arguments)
        for asked in sources:
            # The output of a verifier is no part of the report.
            with contextlib.redirect_stdout(sys.stderr):
                report, num_left_out = _report(asked, verifying, arguments.workers)
            left_out = f"; data.filter leaves out {num_left_out} more" if asked.choice.filter else ""
            _print_report(f"{asked.key} {asked.source.title()}", report, arguments.list, left_out)
            is_clean = is_clean and report.is_clean
    except ValueError as error:
        raise InputError(str(error)) from error
    return 0 if is_clean else 1


def _asked(arguments: argparse.Namespace) -> tuple[Verifying, list[_Asked]]:
    """How rows are verified, and the sources to check."""
    if is_data_file(arguments.recipe.name):
        here = Path.cwd()
        source = Source(
            path=absolute(str(arguments.recipe), here),
            columns=absolute_object(arguments.columns or "asyncrl", here),
        )
        default = absolute_object(arguments.verifier or "math", here)
        return Verifying(default=default), [_Asked("data.train", source, "train")]
    if arguments.columns is not None or arguments.verifier is not None:
        raise InputError("--columns and --verifier are for a data file; a recipe sets them itself.")
    recipe = load_recipe(arguments.recipe, arguments.overrides)
    check_has_tasks(recipe, "asyncrl verify-data")
    choice = RowChoice(recipe.data.row_filter())
    train = [_Asked("data.train", each, "train", choice=choice) for each in recipe.data.train_sources()]
    grader = grader_of(recipe.evaluation)
    heldout = [_Asked("data.heldout", each, "test", grader) for each in recipe.data.heldout_sources()]
    return recipe.verifying, [*train, *heldout]


def _report(asked: _Asked, verifying: Verifying, num_workers: int) -> tuple[DataReport, int]:
    """The report, and how many rows data.filter leaves out of it."""
    rows, unanswered = [], []
    verifiers = VerifierCache(verifying.own_files())

    def takes_task(spec: VerifierSpec) -> bool:
        try:
            return verifiers.takes_task(spec)
        except InputError:
            # The report tells of a verifier that cannot be loaded.
            return False

    use = RowUse(takes_task=takes_task, picked=asked.choice.columns())
    read = rows_of([asked.source], asked.key, verifying, use, split=asked.split, grader=asked.grader)
    wanted = WantedRows(read, asked.choice)
    for row in wanted:
        if isinstance(row, Row):
            rows.append(
                GoldRow(row.where, row.answer, row.verifier.name, row.verifier.options, told_row(row))
            )
        else:
            unanswered.append(row.complaint)
    report = asyncio.run(_check(rows, num_workers, verifying.timeout_seconds, verifying.own_files()))
    report.num_rows += len(unanswered)
    report.unreadable = [*unanswered, *report.unreadable]
    return report, wanted.num_left_out


async def _check(rows: list[GoldRow], workers: int, timeout_seconds: float, folder: Path) -> DataReport:
    with LateStage("checking golds") as shown:

        def progress(done: int, total: int) -> None:
            shown.show(f"{done:,} of {total:,} rows", done=done, total=total)

        async with VerifierPool(workers, timeout_seconds) as pool:
            return await check_rows(rows, pool, folder=folder, progress=progress)


def _print_report(name: str, report: DataReport, limit: int, left_out: str) -> None:
    print(
        f"{name}: {report.num_rows} rows, {report.num_checked} golds or solutions graded as their own answer"
        f"{left_out}"
    )
    print(f"  broken golds     {len(report.unreadable)} of {report.num_rows} cannot be parsed")
    for complaint in report.unreadable:
        print(f"    {complaint}")
    refused = as_percent(report.false_negative_rate, 2)
    print(f"  false negatives  {len(report.refused)} golds refused ({refused})")
    total = sum(report.num_mutants.values())
    accepted = sum(report.num_accepted.values())
    passed = as_percent(report.false_positive_rate, 2)
    print(f"  false positives  {accepted} of {total} wrong answers pass ({passed})")
    for kind, count in sorted(report.num_mutants.items()):
        print(f"    {kind:<20} {report.num_accepted[kind]} of {count}")
    print(f"  guessed readings {len(report.guesses)} golds of letters may be a word or a product")
    for title, complaints in (
        ("guess", report.guesses),
        ("gold refused", report.refused),
        ("wrong answer accepted", report.accepted_mutants),
        ("fault", report.faults),
    ):
        for complaint in complaints[:limit]:
            print(f"  {title}: {complaint}")
        if len(complaints) > limit:
            print(f"  {title}: {len(complaints) - limit} more (--list N)")
