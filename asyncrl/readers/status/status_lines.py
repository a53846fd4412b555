"""Lines that `asyncrl status` prints, and the end of a run on the terminal."""

import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

from rich.console import Console
from rich.text import Text

from asyncrl.observe.metrics.formats import (
    compact,
    duration,
    hundredths,
    percent,
    percent_with_interval,
)
from asyncrl.observe.terminal.live import printable
from asyncrl.observe.terminal.table import print_table
from asyncrl.readers.report.schema import RunReport
from asyncrl.readers.report.tables import conservation, faults, learned, scale
from asyncrl.readers.status.current_run import GONE, Accuracy, CurrentRun, alarms_of
from asyncrl.run.metrics_file import read_metrics
from asyncrl.run.status import ServerStatus
from asyncrl.system.places import CURVES, METRICS, REPORT
from asyncrl.turns.tally import WORDS, endings

TITLE_WIDTH = 10
NARROWEST = 24
STYLES = {
    "finished": "bold green",
    "training": "bold cyan",
    "evaluating": "bold cyan",
    "starting": "bold cyan",
    "stopped": "bold yellow",
    "failed": "bold red",
    GONE: "bold red",
}
GIB = 2**30
LITTLE_DISK_BYTES = 2 * GIB
"""Below this the free space is coloured: a checkpoint of a small model with its optimizer may not fit."""


def status_lines(run: CurrentRun, *, width: int) -> list[Text]:
    """None of them is wider than `width` (of 24 or more)."""
    width = max(width, NARROWEST)
    lines = [_wrapped_title(run, width)]
    for title, text, style in _facts(run):
        lines += _fact(title, text, style, width)
    for server in run.servers if run.is_running else ():
        lines += _fact("server", *_server(server), width)
    for told in run.alarms:
        title, style = ("alarm", "yellow") if told.is_on else ("was", "dim")
        step = "" if told.step is None else f"step {told.step}: "
        lines += _fact(title, f"{step}{told.text}", style, width)
    for warned in run.warnings:
        again = f" ({warned['count']} times)" if warned["count"] > 1 else ""
        # What follows the first line is the end of a log, which the line names.
        first, _, _ = warned["text"].partition("\n")
        lines += _fact("warning", f"step {warned['last_step']}: {first}{again}", "", width)
    style = "yellow" if run.disk_free_bytes < LITTLE_DISK_BYTES else ""
    lines += _fact("disk", f"{run.disk_free_bytes / GIB:.1f} GiB free", style, width)
    return lines


def _wrapped_title(run: CurrentRun, width: int) -> Text:
    text = Text(printable(run.folder), style="bold", overflow="ellipsis", no_wrap=True)
    text.truncate(width, overflow="ellipsis")
    return text


def _facts(run: CurrentRun) -> Iterator[tuple[str, str, str]]:
    """(title, text, style)."""
    words = run.state
    if run.state == GONE and run.silence_seconds is not None:
        words += f" (last heard of {duration(run.silence_seconds)} ago); the same command resumes it"
    if run.state == "finished" and run.report is None:
        words += ", but it was killed before its report; the same command writes it"
    yield "state", words, STYLES.get(run.state, "")
    if run.total_steps:
        left = "" if run.seconds_left is None else f", {duration(run.seconds_left)} left"
        # trainer.num_steps may have been lowered since.
        total = f" of {run.total_steps}" if run.step <= run.total_steps else ""
        yield "step", f"{run.step}{total}{left}", ""
    if run.cause is not None:
        yield "cause", run.cause, "red"
    if run.last_accuracy is not None:
        yield "held-out", _accuracy(run), ""
    if run.reward_mean is not None:
        yield "reward", f"{hundredths(run.reward_mean)} at the last step", ""
    if run.num_faults or run.num_retried:
        words = f"{run.num_faults} in batches, {run.num_retried} whose retry gave a verdict"
        yield "faults", words, "yellow"
    if run.is_running:
        yield from _moment(run)
    if run.report is not None:
        yield "report", run.report, ""


def _moment(run: CurrentRun) -> Iterator[tuple[str, str, str]]:
    """Lines that hold only while it runs."""
    queue = run.queue
    if queue is not None:
        groups = f"{queue['open']} groups open, {queue['ready']} ready, {queue['taken']} taken"
        tokens = queue["tokens_in_flight"]
        yield "queue", f"{groups}; {compact(tokens) if tokens >= 1000 else tokens} tokens in flight", ""
    for who, what in (("trainer", run.waiting["trainer"]), ("rollouts", run.waiting["rollouts"])):
        yield who, "works" if what is None else f"waits {what}", ""


def _accuracy(run: CurrentRun) -> str:
    first, last = run.first_accuracy, run.last_accuracy
    assert first is not None and last is not None
    if first == last:
        return f"{_share(last)} at step {last.step}"
    return f"{percent(first.greedy)} -> {_share(last)} at step {last.step}"


def _share(accuracy: Accuracy) -> str:
    return percent_with_interval(accuracy.greedy, accuracy.low, accuracy.high)


def _fact(title: str, text: str, style: str, width: int) -> list[Text]:
    """`text` next to its title, wrapped."""
    room = width - TITLE_WIDTH
    paragraphs = printable(text).expandtabs().splitlines() or [""]
    wrapped = [line for paragraph in paragraphs for line in textwrap.wrap(paragraph, room) or [""]]
    titles = [f"{title:<{TITLE_WIDTH}}", *[" " * TITLE_WIDTH] * (len(wrapped) - 1)]
    return [Text.assemble((head, "dim"), (line, style)) for head, line in zip(titles, wrapped, strict=True)]


def _server(server: ServerStatus) -> tuple[str, str]:
    """(text, style). The end of the URL, its port, tells servers of one host apart."""
    version = "" if server["version"] is None else f" version {server['version']}"
    words = (
        f"{server['url'].removeprefix('http://')} {server['state']}{version}, {server['requests']} requests, "
        f"{compact(server['tokens_per_second'])} tok/s, busy {percent(server['busy_share'])}"
    )
    for number, what in ((server["restarts"], "restarts"), (server["retractions"], "retracted")):
        words += f", {number} {what}" if number else ""
    return words, "" if server["state"] == "serving" else "yellow"


SHOWN_OF_SCALE = ("the trainer's time", "idle in steady state", "response tokens, first to last step")
"""Rows of the report's table of cost and scale."""


def print_end(
    report: RunReport, run_folder: Path, commands: Mapping[str, str], *, console: Console | None = None
) -> None:
    """`commands` maps what to do next to its command line."""
    console = console or Console(highlight=False)
    console.print()
    steps = f"{report.run.steps} steps in {duration(report.time.step_seconds)}"
    console.print(Text(steps, style="bold"))
    for table in (*learned(report), conservation(report), faults(report)):
        if table.rows:
            console.print()
            print_table(table, console)
    console.print()
    for title, words in scale(report).rows:
        if title in SHOWN_OF_SCALE:
            console.print(Text.assemble((title, "bold"), f"  {words}"))
    metrics = read_metrics(run_folder / METRICS)
    causes = str(metrics.steps[-1].get(WORDS, "")) if metrics.steps else ""
    for title, words in (("agents", endings(metrics.steps)), (WORDS, causes)):
        if words:
            console.print(Text.assemble((title, "bold"), f"  {printable(words)}"))
    for told in alarms_of(metrics.events):
        words = f"at step {told.step}: {told.text}" if told.is_on else f"over since step {told.step}"
        console.print(Text.assemble((f"alarm {told.alarm}", "bold yellow"), f"  {printable(words)}"))
    lines = {"report": str(run_folder / REPORT), "curves": str(run_folder / CURVES), **commands}
    width = max(map(len, lines))
    for title, value in lines.items():
        # soft_wrap: a path or command that the terminal wraps can still be copied in one piece.
        console.print(Text.assemble((f"{title:<{width}}  ", "bold"), value), soft_wrap=True)
