"""`asyncrl status RUN`: what a run does now, from another shell."""

import argparse
import json
import os
import time
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live

from asyncrl.observe.metrics.metrics_file import Metrics, read_metrics
from asyncrl.observe.terminal.live import has_terminal
from asyncrl.readers.status.current_run import NOT_STARTED, CurrentRun, read_run
from asyncrl.readers.status.status_lines import short_line, status_lines
from asyncrl.run.folder import METRICS

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
    reader = _Reader(arguments.run)
    if arguments.follow:
        now = _follow(reader, is_json=arguments.json)
    else:
        now = reader.read()
        _print(now, Console(highlight=False), is_json=arguments.json)
    return EXIT_CODES.get(now.state, 0)


class _Reader:
    """Parses metrics.jsonl again only when it has grown."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._size = -1
        self._metrics = Metrics()

    def read(self) -> CurrentRun:
        path = self._folder / METRICS
        size = path.stat().st_size if os.path.isfile(path) else 0
        if size != self._size and size:
            self._size, self._metrics = size, read_metrics(path)
        return read_run(self._folder, metrics=self._metrics)


def _print(now: CurrentRun, console: Console, *, is_json: bool) -> None:
    if is_json:
        print(json.dumps(now.json(), indent=2))
        return
    for line in status_lines(now, width=console.width):
        console.print(line, soft_wrap=True)


def _follow(reader: _Reader, *, is_json: bool) -> CurrentRun:
    """Draws one picture that changes on a terminal; elsewhere a line when the state or the step does."""
    console = Console(highlight=False)
    if has_terminal(console) and not is_json:
        return _follow_on_terminal(reader, console)
    said = ""
    while True:
        now = reader.read()
        words = f"{now.state} {now.step} {[told for told in now.alarms if told.is_on]}"
        if words != said:
            said = words
            print(json.dumps(now.json()) if is_json else short_line(now), flush=True)
        if _has_ended(now):
            return now
        time.sleep(INTERVAL_SECONDS)


def _follow_on_terminal(reader: _Reader, console: Console) -> CurrentRun:
    with Live(console=console, auto_refresh=False) as live:
        while True:
            now = reader.read()
            # The width is asked for each picture: the window may have changed.
            live.update(Group(*status_lines(now, width=console.width)), refresh=True)
            if _has_ended(now):
                return now
            time.sleep(INTERVAL_SECONDS)


def _has_ended(now: CurrentRun) -> bool:
    return not now.is_running and now.state != NOT_STARTED
