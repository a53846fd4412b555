"""`asyncrl select RUN --out FILE`: responses of a run as data for SFT and DPO."""

import argparse
import asyncio
import contextlib
import json
import sys
from pathlib import Path

from rich.console import Console

from asyncrl.commands.arguments import add_recipe
from asyncrl.commands.pages import page_of
from asyncrl.commands.parser import whole
from asyncrl.commands.select_work import Request, Work
from asyncrl.commands.train import explained
from asyncrl.launch.stopping import INTERRUPTED
from asyncrl.loops import background
from asyncrl.observe.terminal.stage import stage
from asyncrl.observe.terminal.table import Table, print_table, table_console, warn_on_stderr
from asyncrl.readers.selection.candidate import UNITS, Account, Fate
from asyncrl.readers.selection.choices import CHOICES
from asyncrl.readers.selection.selection import Regrading, Selection
from asyncrl.readers.selection.written import TYPES, Output

HELP = (
    "Select responses of a run as data for SFT and DPO: best of n, all correct, shortest, the majority's, or "
    "preference pairs, without repeated texts and without questions that evaluations ask. With -n it "
    "generates what the journal lacks, or all from a recipe or a model; a call that is broken off continues "
    "when the same command runs again."
)
EXAMPLES = (
    "asyncrl select runs/r1_zero_arithmetic_cpu --out sft.jsonl",
    "asyncrl select runs/r1_zero_arithmetic_cpu --choose pairs -n 8 --out dpo.parquet",
)
DEFAULT = "correct"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_recipe(parser, help="the folder of a run; with -n also a recipe, or a model with data.train=FILE")
    parser.usage = "%(prog)s RUN|RECIPE|MODEL --out FILE [section.key=value ...] [options]"
    parser.add_argument("--out", type=Path, required=True, help="the file to write: .jsonl or .parquet")
    parser.add_argument("--force", action="store_true", help="replace --out where it exists")
    kinds = "; ".join(f"{choice.name}: {choice.meaning}" for choice in CHOICES.values())
    parser.add_argument("--choose", default=DEFAULT, metavar="KIND", help=f"{kinds}. Default: {DEFAULT}")
    parser.add_argument(
        "--limit",
        type=whole(1),
        metavar="N",
        help="most lines of a row; default: 1 of best and shortest, else all",
    )
    parser.add_argument("--tokens", action="store_true", help="also the tokens of prompts and responses")
    parser.add_argument("--json", action="store_true", help="print the summary as one JSON object")
    _add_filters(parser)
    made = parser.add_argument_group("what is generated")
    made.add_argument("-n", type=whole(1), help="responses to each row; what the journal lacks is generated")
    made.add_argument(
        "--compacted", action="store_true", help="generate as many as replay.keep_steps took from the journal"
    )
    made.add_argument("--all-rows", action="store_true", help="also for rows that the run has not asked")
    made.add_argument("--at", help="model: base, best, last or a step; default: last of a run, else base")


def _add_filters(parser: argparse.ArgumentParser) -> None:
    looked = parser.add_argument_group("which responses are looked at")
    looked.add_argument("--steps", metavar="A-B", help="those of these steps")
    looked.add_argument("--versions", metavar="A-B", help="those whose tokens are all of these versions")
    looked.add_argument("--length", metavar="A-B", help="those of this number of sampled tokens")
    looked.add_argument(
        "--source", action="append", default=[], metavar="LABEL", help="those to rows of this source"
    )
    looked.add_argument("--rows", metavar="A-B", help="those to these rows of each source, from 1")
    looked.add_argument(
        "--score", metavar="A-B", help="write, or prefer, those whose raw score is within this"
    )
    looked.add_argument(
        "--verifier", metavar="NAME", help="grade all by this one first, as asyncrl audit does"
    )
    looked.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="settings",
        help="option of --verifier",
    )


def run(arguments: argparse.Namespace) -> int:
    """0 when lines were written; 1 without any, or when a server failed; 130 after Ctrl-C. Raises
    InputError."""
    return selected(arguments)[0]


def selected(arguments: argparse.Namespace) -> tuple[int, Account | None]:
    """The exit code, and the account of a selection that is whole. Raises InputError."""
    warn_on_stderr()
    accounts: list[Account] = []
    # With --json standard output holds the object alone.
    with contextlib.redirect_stdout(sys.stderr):
        code = explained(lambda: _select(arguments, accounts), has_page=not arguments.json)
    for account in accounts:
        _print(account, arguments)
    if code == INTERRUPTED:
        words = "Stopped: --out was not written. Generated responses are kept: the same command continues."
        print(words, file=sys.stderr)
    return code, accounts[0] if accounts else None


def _select(arguments: argparse.Namespace, accounts: list[Account]) -> int:
    """`accounts` gets that of a whole selection."""
    work = Work.read(Request.of(arguments), arguments)
    account = asyncio.run(_write(work, arguments))
    accounts.append(account)
    if account.fates["responses"][Fate.WRITTEN]:
        return 0
    print("No response was selected, so no file was written.", file=sys.stderr)
    if not arguments.json:
        print(f"Read: {page_of(__name__)}", file=sys.stderr)
    return 1


async def _write(work: Work, arguments: argparse.Namespace) -> Account:
    request, grader = work.request, work.grader
    generated = await work.generated(arguments)
    console = Console(stderr=True, highlight=False)
    async with contextlib.AsyncExitStack() as stack:
        if request.choice.votes:
            await stack.enter_async_context(grader)
            await stack.enter_async_context(background(grader.waits.watch(), "waits for verdicts"))
        output = stack.enter_context(Output(arguments.out, TYPES))
        progress = stack.enter_context(stage(f"writing {arguments.out}", len(work.rows), console=console))
        selection = Selection(
            work.reading,
            request.choice,
            request.rules,
            work.maker,
            output,
            grader if request.choice.votes else None,
            None if work.other is None else Regrading(work.recipe, work.other),
        )
        await selection.write(work.rows, generated, progress.advance)
        return selection.account


def _print(account: Account, arguments: argparse.Namespace) -> None:
    if arguments.json:
        print(json.dumps({"out": str(arguments.out), **account.as_json()}))
        return
    print_table(Table("", (str(arguments.out), *UNITS), account.lines()), table_console())
    if account.num_generated:
        print(f"{account.num_generated:,} of the responses were generated; they are in no group.")
