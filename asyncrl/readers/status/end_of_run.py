"""The end of a run on the terminal: what it learned, token accounts, faults, alarms, what to do next."""

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.text import Text

from asyncrl.observe.metrics.formats import duration
from asyncrl.observe.terminal.live import printable
from asyncrl.observe.terminal.table import print_table
from asyncrl.readers.report.schema import RunReport
from asyncrl.readers.report.tables import conservation, faults, learned, scale
from asyncrl.readers.status.current_run import alarms_of
from asyncrl.run.metrics_file import read_metrics
from asyncrl.system.run_files import CURVES, METRICS, REPORT
from asyncrl.turns.tally import WORDS, endings

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
