"""`asyncrl status RUN|CHAIN`: what a run or a chain does now, from another shell."""

import argparse
import json
from pathlib import Path

from rich.console import Console

from asyncrl.readers.chain.story import ChainStory, read_story
from asyncrl.readers.chain.tables import chain_folder, chain_lines
from asyncrl.readers.status import NOT_STARTED, CurrentRun, read_run, status_lines
from asyncrl.run.chain import SELECTION

HELP = (
    "Print what a run does now: its state, what each part waits for, servers, alarms; of one that has ended, "
    "its result; of a chain, where it is. Reads folders alone, from any machine that sees them. Exit codes: "
    "0 it runs, finished or has not started, 1 it failed or died, 2 no run folder, 3 it was stopped before "
    "its end."
)
EXAMPLES = ("asyncrl status runs/r1_zero_arithmetic_cpu", "asyncrl status runs/r1_zero_arithmetic_cpu --json")
EXIT_CODES = {"failed": 1, "no longer running": 1, "stopped": 3}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, help="a run folder; or a chain, by its folder or file")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """The exit code, as HELP says. Raises InputError where there is no run folder."""
    console = Console(highlight=False)
    if (chain := chain_folder(arguments.run)) is not None:
        story = read_story(chain)
        _print_chain(story, console, is_json=arguments.json)
        return EXIT_CODES.get(story.state, 0)
    now = read_run(arguments.run)
    _print(now, console, is_json=arguments.json)
    return EXIT_CODES.get(now.state, 0)


def _print_chain(story: ChainStory, console: Console, *, is_json: bool) -> None:
    """The stages, and the run of the one that the chain is at."""
    if is_json:
        print(story.model_dump_json(indent=2))
        return
    for line in chain_lines(story):
        console.print(line, soft_wrap=True)
    present = next((stage for stage in story.stages if stage.state not in ("finished", NOT_STARTED)), None)
    if present is not None and present.kind != SELECTION:
        print()
        _print(read_run(Path(present.place)), console, is_json=False)


def _print(now: CurrentRun, console: Console, *, is_json: bool) -> None:
    if is_json:
        print(json.dumps(now.json(), indent=2))
        return
    for line in status_lines(now, width=console.width):
        console.print(line, soft_wrap=True)
