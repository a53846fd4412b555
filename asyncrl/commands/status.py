"""`asyncrl status RUN`: what a run does now, from another shell."""

import argparse
import json
from pathlib import Path

from rich.console import Console

from asyncrl.readers.status.current_run import CurrentRun, read_run
from asyncrl.readers.status.status_lines import status_lines

HELP = (
    "Print what a run does now: its state, what each part waits for, servers, alarms; of one that has ended, "
    "its result. Reads the run folder alone, from any machine that sees it. Exit codes: 0 it runs, finished "
    "or has not started, 1 it failed or died, 2 no run folder, 3 it was stopped before its end."
)
EXIT_CODES = {"failed": 1, "no longer running": 1, "stopped": 3}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, help="a run folder")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """The exit code, as HELP says. Raises InputError where there is no run folder."""
    now = read_run(arguments.run)
    _print(now, Console(highlight=False), is_json=arguments.json)
    return EXIT_CODES.get(now.state, 0)


def _print(now: CurrentRun, console: Console, *, is_json: bool) -> None:
    if is_json:
        print(json.dumps(now.json(), indent=2))
        return
    for line in status_lines(now, width=console.width):
        console.print(line, soft_wrap=True)
