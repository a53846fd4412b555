"""`asyncrl compare RUN RUN ...`: recipes and results side by side, and whether a difference may be chance."""

import argparse
import json
from pathlib import Path

from asyncrl.observe.terminal.table import table_console
from asyncrl.readers.compare.recorded import open_runs
from asyncrl.readers.compare.run_comparison import compare, print_comparison

HELP = (
    "Compare runs: what differs in their recipes, what each reached at which cost, and whether one beats "
    "another, task by task over the held-out tasks that both answered. Runs whose recipes differ in "
    "their seed alone form one group. The first run is the one that others are compared with. "
    "`asyncrl view` draws the curves."
)
EXAMPLES = (
    "asyncrl compare runs/first runs/second",
    "asyncrl compare runs/seed_1 runs/seed_2 runs/other --json",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="run folders, two or more")
    parser.add_argument("--json", action="store_true", help="print all numbers as one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """0 when compared. Raises InputError."""
    comparison = compare(open_runs(arguments.runs))
    if arguments.json:
        print(json.dumps(comparison, indent=1, default=str))
    else:
        print_comparison(comparison, table_console())
    return 0
