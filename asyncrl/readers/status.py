"""The state of a run now, or its end: read from its folder alone, while it writes or after its end.

Joins status.json (the moment) with metrics.jsonl (what was measured, warned and alarmed). Makes the lines of
`asyncrl status`, and prints those at the end of a run.
"""

import shutil
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from asyncrl.errors import InputError
from asyncrl.journal.reader import find_journal
from asyncrl.journal.starts import recorded_end
from asyncrl.observe.metrics.mishaps import POST_MORTEM, Warned, warnings_of
from asyncrl.observe.terminal.live import ETA_WINDOW_STEPS
from asyncrl.observe.terminal.table import (
    compact,
    duration,
    hundredths,
    percent,
    percent_with_interval,
    print_table,
    printable,
)
from asyncrl.readers.report.schema import RunReport
from asyncrl.readers.report.tables import conservation, faults, learned, scale
from asyncrl.run.metrics_file import Metrics, Row, read_metrics
from asyncrl.run.status import (
    ENDS,
    QueueStatus,
    ServerStatus,
    Status,
    Waiting,
    is_running,
    read_status,
    silence_of,
    words_of_state,
)
from asyncrl.system.paths import nearest_run
from asyncrl.system.places import CURVES, JOURNAL, METRICS, RECIPE, REPORT
from asyncrl.turns.tally import WORDS, endings

NUM_WARNINGS = 3
NUM_ALARMS = 5
NOT_STARTED = "not started"
GONE = "no longer running"


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Accuracy of a held-out evaluation; shares with their 95% interval where it is known."""

    step: int
    greedy: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Told:
    """An alarm, as metrics.jsonl has it."""

    step: int | None
    text: str
    alarm: str
    """Name of the alarm."""
    is_on: bool
    """False for one that has ended."""


@dataclass(frozen=True, slots=True)
class CurrentRun:
    folder: str
    state: str
    """State as in status.json; of a run that could not say how it ended "finished" where nothing is left to
    do, else "no longer running"; or "not started"."""
    is_running: bool
    step: int
    total_steps: int
    seconds_left: float | None
    """Estimate from the last steps; None where the run trains no more, or no step was measured."""
    silence_seconds: float | None
    """Since status.json was written."""
    reward_mean: float | None
    """Mean reward of the last step."""
    num_faults: int
    """Verdicts of the batches that failed."""
    num_retried: int
    """Further faults of verifiers, whose retry gave a verdict."""
    first_accuracy: Accuracy | None
    last_accuracy: Accuracy | None
    waiting: Waiting
    queue: QueueStatus | None
    servers: list[ServerStatus]
    alarms: list[Told]
    """The last of those that are on, and of those that were, in order."""
    warnings: list[Warned]
    """The last ones, in order; counted over all starts, as on the page."""
    cause: str | None
    """Cause of the end of a run that failed."""
    report: str | None
    """Path of the report of a run that ended."""
    disk_free_bytes: int

    def json(self) -> dict[str, Any]:
        return asdict(self)


def read_run(folder: Path, metrics: Metrics | None = None) -> CurrentRun:
    """`metrics` are its rows, where they are read already. Raises InputError."""
    if not (folder / RECIPE).is_file():
        raise InputError(f"{folder} is not a run folder: it has no {RECIPE}.{nearest_run(folder)}")
    metrics = metrics or read_metrics(folder / METRICS)
    status = read_status(folder)
    state = NOT_STARTED if status is None else state_of(folder, status)
    evaluations = [row for row in metrics.evaluations if row.get("greedy_accuracy") is not None]
    report = folder / REPORT
    return CurrentRun(
        folder=str(folder),
        state=state,
        is_running=status is not None and is_running(status),
        step=0 if status is None else status["step"],
        total_steps=0 if status is None else status["total_steps"],
        seconds_left=None if status is None else _seconds_left(status, metrics),
        silence_seconds=None if status is None else silence_of(status),
        reward_mean=metrics.steps[-1].get("reward_mean") if metrics.steps else None,
        num_faults=_sum(metrics, "outcomes_fault"),
        num_retried=_sum(metrics, "faults_retried"),
        first_accuracy=_accuracy(evaluations[0]) if evaluations else None,
        last_accuracy=_accuracy(evaluations[-1]) if evaluations else None,
        waiting={"trainer": None, "rollouts": None} if status is None else status["waiting"],
        queue=None if status is None else status["queue"],
        servers=[] if status is None else status["servers"],
        alarms=alarms_of(metrics.events)[-NUM_ALARMS:],
        warnings=warnings_of(metrics.events)[:NUM_WARNINGS][::-1],
        cause=cause_of(folder) if state == "failed" else None,
        report=str(report) if state in ENDS and report.exists() else None,
        disk_free_bytes=shutil.disk_usage(folder).free,
    )


def _sum(metrics: Metrics, name: str) -> int:
    return sum(int(row.get(name) or 0) for row in metrics.steps)


def _accuracy(row: Row) -> Accuracy:
    return Accuracy(row["step"], row["greedy_accuracy"], row.get("greedy_low"), row.get("greedy_high"))


def _seconds_left(status: Status, metrics: Metrics) -> float | None:
    recent = [row.get("step_seconds") for row in metrics.steps[-ETA_WINDOW_STEPS:]]
    known = [float(seconds) for seconds in recent if seconds is not None]
    if not known or not is_running(status):
        return None
    return max(0, status["total_steps"] - status["step"]) * sum(known) / len(known)


def alarms_of(events: list[Row]) -> list[Told]:
    """The last row of each alarm, those that are on after those that were."""
    last: dict[str, Told] = {}
    for row in events:
        if row["event"] == "alarm":
            name = str(row.get("alarm"))
            # Popped first, so that it takes its new place in the order.
            last.pop(name, None)
            last[name] = Told(row.get("step"), str(row.get("text")), name, bool(row.get("is_on", True)))
    on = [told for told in last.values() if told.is_on]
    over = [told for told in last.values() if not told.is_on]
    return [*over, *on]


def state_of(folder: Path, status: Status) -> str:
    """As `CurrentRun.state`."""
    state = words_of_state(status)
    if state != GONE:
        return state
    try:
        journal = find_journal(folder / JOURNAL)
    except InputError:
        return state
    return "finished" if journal is not None and recorded_end(journal) is not None else state


def stamp(path: Path) -> str:
    """A text that changes whenever the file has changed; empty without one."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return ""
    # Reading a journal that has no writer makes an empty write-ahead log: nothing was written.
    return f"{found.st_mtime_ns:x}.{found.st_size:x}" if found.st_size else ""


def cause_of(folder: Path) -> str | None:
    """The error that ended a failed run: the first section of the post-mortem, without its title."""
    try:
        lines = (folder / POST_MORTEM).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    end = lines.index("") if "" in lines else len(lines)
    return "\n".join(lines[2:end]) or None


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
    folder = Text(printable(run.folder), style="bold", overflow="ellipsis", no_wrap=True)
    folder.truncate(width, overflow="ellipsis")
    lines = [folder]
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
        yield "held-out", _accuracies(run), ""
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


def _accuracies(run: CurrentRun) -> str:
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
