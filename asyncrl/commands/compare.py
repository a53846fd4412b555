"""`asyncrl compare RUN RUN ...`: recipes and results side by side, and whether a difference may be chance."""

import argparse
import json
import math
import sys
from pathlib import Path

from rich.console import Console

from asyncrl.errors import InputError
from asyncrl.readers.compare.bootstrap import Resampling
from asyncrl.readers.compare.picture import write_picture
from asyncrl.readers.compare.recorded import open_runs
from asyncrl.readers.compare.run_comparison import Comparison, compare
from asyncrl.readers.compare.table import print_comparison

HELP = (
    "Compare runs: what differs in their recipes, what each reached at which cost, and whether one beats "
    "another, task by task over the held-out tasks that both answered. Runs whose recipes differ in "
    "their seed alone form one group. The first run is the one that others are compared with."
)
DEFAULT = Resampling()
NARROWEST = 140
"""Columns of a table where there is no terminal to fit."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="run folders, two or more")
    parser.add_argument(
        "--price-per-hour",
        metavar="X",
        help="dollars per hour of a run's machines: one for all runs, or one per run, as 2.5,1.2",
    )
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the curves")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers; - prints them")
    parser.add_argument(
        "--resamples",
        type=int,
        default=DEFAULT.num_resamples,
        help=f"resamples of seeds and tasks, for several seeds a side (default {DEFAULT.num_resamples:,})",
    )
    parser.add_argument("--seed", type=int, default=DEFAULT.seed, help="seed of the resampling (default 0)")


def run(arguments: argparse.Namespace) -> int:
    """0 when compared, 2 for bad input."""
    try:
        comparison = _compare(arguments)
        if arguments.plot is not None:
            write_picture(comparison, arguments.plot)
        _write(comparison, arguments.json)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _compare(arguments: argparse.Namespace) -> Comparison:
    if arguments.resamples < 1 or arguments.seed < 0:
        raise InputError(
            f"--resamples is {arguments.resamples} and --seed {arguments.seed}, expected 1 or more and 0 or "
            f"more."
        )
    prices = _prices(arguments.price_per_hour, len(arguments.runs))
    resampling = Resampling(arguments.resamples, arguments.seed)
    return compare(open_runs(arguments.runs), prices=prices, resampling=resampling)


def _prices(text: str | None, num_runs: int) -> list[float] | None:
    if text is None:
        return None
    try:
        prices = [float(part) for part in text.split(",")]
    except ValueError:
        prices = []
    if len(prices) == 1:
        prices *= num_runs
    if len(prices) != num_runs or not all(math.isfinite(price) and price >= 0 for price in prices):
        raise InputError(
            f"--price-per-hour is {text!r}, expected dollars, as 2.5, or one number for each of the "
            f"{num_runs} runs, as 2.5,1.2."
        )
    return prices


def _write(comparison: Comparison, file: Path | None) -> None:
    text = json.dumps(comparison, indent=1, default=str)
    if file is not None and str(file) == "-":
        print(text)
        return
    if file is not None:
        try:
            file.write_text(f"{text}\n", encoding="utf-8")
        except OSError as error:
            raise InputError(f"--json {file} cannot be written: {error.strerror}.") from error
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, NARROWEST)
    print_comparison(comparison, console)
