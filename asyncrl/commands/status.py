"""`asyncrl status RUN`: what a run does now, from another shell."""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live

from asyncrl.observe.metrics.metrics_file import MetricsFollower
from asyncrl.observe.terminal.live import has_terminal
from asyncrl.readers.status.current_run import NOT_STARTED, CurrentRun, read_run
from asyncrl.readers.status.status_lines import short_line, status_lines
from asyncrl.system.run_files import METRICS

HELP = (
    "Print what a run does now: its state, what each part waits for, servers, alarms; of one that has ended, "
    "its result. Reads the run folder alone, from any machine that sees it. Exit codes: 0 it runs, finished "
    "or has not started, 1 it failed or died, 2 no run folder, 3 it was stopped before its end. With "
    "--follow: when it has ended."
)
INTERVAL_SECONDS = 1.0
EXIT_CODES = {"failed": 1, "no longer running": 1, "stopped": 3}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, help="a run folder")
    parser.add_argument("--json", action="store_true", help="print one JSON object (a line with --follow)")
    parser.add_argument("--follow", action="store_true", help="continue until the run has ended")


def run(arguments: argparse.Namespace) -> int:
    """The exit code, as HELP says. Raises InputError where there is no run folder."""
    read = _reader(arguments.run)
    if arguments.follow:
        now = _follow(read, is_json=arguments.json)
    else:
        now = read()
        _print(now, Console(highlight=False), is_json=arguments.json)
    return EXIT_CODES.get(now.state, 0)


def _reader(folder: Path) -> Callable[[], CurrentRun]:
    """The function that reads the run as it is now; of metrics.jsonl only what was added."""
    follower = MetricsFollower(folder / METRICS)
    return lambda: read_run(folder, metrics=follower.read())


def _print(now: CurrentRun, console: Console, *, is_json: bool) -> None:
    if is_json:
        print(json.dumps(now.json(), indent=2))
        return
    for line in status_lines(now, width=console.width):
        console.print(line, soft_wrap=True)


def _follow(read: Callable[[], CurrentRun], *, is_json: bool) -> CurrentRun:
    """Draws one picture that changes on a terminal; elsewhere a line when the state or the step does."""
    console = Console(highlight=False)
    if has_terminal(console) and not is_json:
        return _follow_on_terminal(read, console)
    said = ""
    while True:
        now = read()
        words = f"{now.state} {now.step} {[told for told in now.alarms if told.is_on]}"
        if words != said:
            said = words
            print(json.dumps(now.json()) if is_json else short_line(now), flush=True)
        if _has_ended(now):
            return now
        time.sleep(INTERVAL_SECONDS)


def _follow_on_terminal(read: Callable[[], CurrentRun], console: Console) -> CurrentRun:
    with Live(console=console, auto_refresh=False) as live:
        while True:
            now = read()
            # The width is asked for each picture: the window may have changed.
            live.update(Group(*status_lines(now, width=console.width)), refresh=True)
            if _has_ended(now):
                return now
            time.sleep(INTERVAL_SECONDS)


def _has_ended(now: CurrentRun) -> bool:
    return not now.is_running and now.state != NOT_STARTED
