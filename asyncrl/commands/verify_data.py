"""`asyncrl verify-data RECIPE`: checks the data of a recipe against its verifiers, before any training.

Every gold must grade correct as its own answer, and wrong answers made from it (a changed digit, the sign,
swapped places, another row's gold) must not. The tests of a code row must pass its own solution, if its gold
has one, and fail programs that do nothing useful. Lists unverifiable rows and reports both error rates."""

import argparse
import asyncio
import contextlib
import sys
from pathlib import Path

from asyncrl.commands.arguments import add_recipe
from asyncrl.errors import InputError
from asyncrl.recipe.file import load_recipe
from asyncrl.rollout.tasks import read_rows
from verifiers.dataset import DataReport, DataRow, check_rows
from verifiers.pool import VerifierPool

HELP = "Check the data of a recipe against its verifiers: false negatives and false positives."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_recipe(parser)
    parser.add_argument("--workers", type=int, default=1, help="worker processes")
    parser.add_argument("--list", type=int, default=20, metavar="N", help="complaints of each kind to print")


def run(arguments: argparse.Namespace) -> int:
    """0 when every row can be verified, 1 when not, 2 for bad input."""
    try:
        recipe = load_recipe(arguments.recipe, arguments.overrides)
        paths = [Path(recipe.data.train)] + ([Path(recipe.data.heldout)] if recipe.data.heldout else [])
        reports = []
        for path in paths:
            rows = [
                DataRow(row.where(), row.answer, row.verifier.name, row.verifier.options)
                for row in read_rows(path, recipe.verifying)
            ]
            timeout = recipe.verifying.timeout_seconds
            # What a verifier prints is no part of the report.
            with contextlib.redirect_stdout(sys.stderr):
                report = asyncio.run(_check(rows, arguments.workers, timeout, recipe.verifying.own_files()))
            _print_report(path, report, arguments.list)
            reports.append(report)
    except (InputError, ValueError) as error:
        print(f"asyncrl verify-data: {error}", file=sys.stderr)
        return 2
    return 0 if all(report.is_clean for report in reports) else 1


async def _check(rows: list[DataRow], workers: int, timeout_seconds: float, folder: Path) -> DataReport:
    async with VerifierPool(workers, timeout_seconds) as pool:
        return await check_rows(rows, pool, folder=folder)


def _print_report(path: Path, report: DataReport, limit: int) -> None:
    print(
        f"{path}: {report.num_rows} rows, {report.num_checked} golds or solutions graded as their own answer"
    )
    print(f"  false negatives  {len(report.refused)} golds refused ({report.false_negative_rate:.2%})")
    total = sum(report.num_mutants.values())
    accepted = sum(report.num_accepted.values())
    print(f"  false positives  {accepted} of {total} wrong answers pass ({report.false_positive_rate:.2%})")
    for kind, count in sorted(report.num_mutants.items()):
        print(f"    {kind:<20} {report.num_accepted[kind]} of {count}")
    for title, complaints in (
        ("cannot be verified", report.unreadable),
        ("gold refused", report.refused),
        ("wrong answer accepted", report.accepted_mutants),
        ("fault", report.faults),
    ):
        for complaint in complaints[:limit]:
            print(f"  {title}: {complaint}")
        if len(complaints) > limit:
            print(f"  {title}: {len(complaints) - limit} more (--list N)")
