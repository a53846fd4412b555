"""The end of a run on the terminal: both R1-zero curves, evaluations, token accounts, what to do next."""

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from asyncrl.observe.metrics.formats import NOTHING, compact, duration, percent, percent_with_interval
from asyncrl.observe.metrics.metrics_file import Row
from asyncrl.observe.metrics.summary import Summary
from asyncrl.observe.terminal.live import printable
from asyncrl.observe.terminal.model_differences import print_comparison
from asyncrl.observe.terminal.plot import Curve, plot
from asyncrl.readers.status.current_run import alarms_of
from asyncrl.system.rounding import as_percent, fixed

PLOT_HEIGHT = 9
WIDEST = 120
NARROWEST_FOR_TWO = 60
"""Below this width the curves are stacked."""


def print_summary(summary: Summary, *, console: Console | None = None) -> None:
    console = console or Console(highlight=False)
    steps = len(summary.metrics.steps)
    console.print()
    console.print(f"[bold]{steps} steps in {duration(summary.training_seconds)}[/]", highlight=False)
    _print_curves(summary, console)
    console.print()
    if summary.metrics.evaluation("before") or summary.metrics.evaluation("after"):
        console.print(_evaluations(summary))
        if (template := summary.template()) is not None:
            console.print(Text(f"template, before and after alike: {printable(template)}", style="dim"))
        console.print()
    for results in summary.benchmarks():
        print_comparison(("before", "after"), results, console)
        console.print()
    console.print(_conservation(summary))
    console.print()
    if summary.faults:
        console.print(_faults(summary))
        console.print()
    _print_times(summary, console)
    _print_alarms(summary, console)
    _print_next(summary, console)


def _print_curves(summary: Summary, console: Console) -> None:
    width = min(console.width, WIDEST)
    is_pair = width >= NARROWEST_FOR_TWO
    each = (width - 2) // 2 if is_pair else width
    is_unicode = console.encoding.lower().startswith("utf")
    blocks = [
        _PlotBlock(*block, width=each, is_unicode=is_unicode)
        for block in (_accuracy(summary), _length(summary))
        if block is not None
    ]
    if is_pair and len(blocks) == 2:
        left, right = blocks
        for first, second in zip(left.lines, right.lines, strict=True):
            gap = Text(" " * (each + 2 - first.cell_len))
            console.print(Text.assemble(first, gap, second), soft_wrap=True)
    else:
        for line in (line for block in blocks for line in block.lines):
            console.print(line, soft_wrap=True)


class _PlotBlock:
    """A titled plot as coloured lines."""

    def __init__(
        self, title: str, style: str, curve: Curve, top: float, unit: str, *, width: int, is_unicode: bool
    ) -> None:
        def label(y: float) -> str:
            return f"{fixed(100 * y)}{unit}" if unit == "%" else fixed(y)

        body = plot(
            curve, width=width, height=PLOT_HEIGHT, y_range=(0, top), y_label=label, is_unicode=is_unicode
        )
        self.lines = [Text(title[:width], style="bold"), *(Text(line, style=style) for line in body)]


def _accuracy(summary: Summary) -> tuple[str, str, Curve, float, str] | None:
    rows = [row for row in summary.metrics.evaluations if row.get("greedy_accuracy") is not None]
    if not rows:
        return None
    points = [(row["step"], row["greedy_accuracy"]) for row in rows]
    intervals = [(row["step"], row["greedy_low"], row["greedy_high"]) for row in rows]
    title = f"held-out accuracy  {percent(points[0][1])} -> {percent(points[-1][1])}"
    return title, "cyan", Curve(points, intervals), 1.0, "%"


def _length(summary: Summary) -> tuple[str, str, Curve, float, str] | None:
    rows = [row for row in summary.metrics.steps if row.get("response_tokens_mean") is not None]
    if not rows:
        return None
    points = [(row["step"], row["response_tokens_mean"]) for row in rows]
    title = f"response length  {compact(points[0][1])} -> {compact(points[-1][1])} tokens"
    return title, "magenta", Curve(points), max(1.0, *(y for _, y in points)), ""


def _evaluations(summary: Summary) -> Table:
    before, after = summary.metrics.evaluation("before"), summary.metrics.evaluation("after")
    table = _table("held-out tasks, 95% intervals", ["", "before", "after"])
    rows = evaluation_rows(before, after)
    for row in rows:
        table.add_row(*row)
    return table


def evaluation_rows(before: Row | None, after: Row | None) -> list[tuple[str, str, str]]:
    """Measure, before, after: as the terminal and the report show them."""
    k = next((row["k"] for row in (after, before) if row and row.get("k") is not None), None)
    measures = [("greedy accuracy", "greedy_accuracy", "greedy")]
    if k is not None:
        measures += [(f"avg@{k}", "avg_at_k", "avg"), (f"pass@{k}", "pass_at_k", "pass")]

    def shown(row: Row | None, value: str, bounds: str) -> str:
        if row is None:
            return NOTHING
        return percent_with_interval(row.get(value), row.get(f"{bounds}_low"), row.get(f"{bounds}_high"))

    def tokens(row: Row | None) -> str:
        return compact(row.get("response_tokens_mean")) if row else NOTHING

    rows = [(name, shown(before, value, b), shown(after, value, b)) for name, value, b in measures]
    return [*rows, ("response tokens", tokens(before), tokens(after))]


def _conservation(summary: Summary) -> Table:
    books = summary.conservation
    table = _table("conservation", ["", "tokens", "groups", "share"])
    table.add_row("generated", f"{books.generated_tokens():,}", f"{books.generated_groups():,}", "")
    for index, fate in enumerate(books.fates()):
        sign = "+" if index else "="
        share = as_percent(fate.share, 1)
        table.add_row(f"{sign} {fate.name}", f"{fate.tokens:,}", f"{fate.groups:,}", share)
    if books.missing_tokens():
        table.add_row("! unaccounted", f"{books.missing_tokens():,}", "", "", style="bold red")
    return table


def _faults(summary: Summary) -> Table:
    table = _table("faults by cause", ["", "verdicts", "retried", "first on"])
    for fault in summary.faults:
        # Text, since a user's words may look like markup.
        counts = f"{fault.num_verdicts:,}", f"{fault.num_retried:,}"
        table.add_row(Text(printable(fault.cause)), *counts, Text(printable(fault.task_id)))
    return table


def _table(title: str, columns: Iterable[str]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left", header_style="dim")
    return table


def _print_times(summary: Summary, console: Console) -> None:
    shares = ", ".join(f"{words} {percent(share)}" for words, share in summary.time_shares.items() if share)
    if shares:
        console.print(f"[bold]trainer time[/]  {shares}", highlight=False)
    cut = [row["cut_share"] for row in summary.metrics.steps if row.get("cut_share") is not None]
    if cut:
        console.print(
            f"[bold]cut at max_new_tokens[/]  {percent(cut[0])} -> {percent(cut[-1])} of the responses",
            highlight=False,
        )
    idle = f"trainer {percent(summary.trainer_idle_share)}, rollout {percent(summary.rollout_idle_share)}"
    console.print(f"[bold]idle in steady state[/]  {idle}", highlight=False)


def _print_alarms(summary: Summary, console: Console) -> None:
    for told in alarms_of(summary.metrics.events):
        words = f"at step {told.step}: {told.text}" if told.is_on else f"over since step {told.step}"
        console.print(Text.assemble((f"alarm {told.alarm}", "bold yellow"), f"  {printable(words)}"))


def _print_next(summary: Summary, console: Console) -> None:
    lines = [("report", str(summary.report)), ("curves", str(summary.curves))]
    if summary.checkpoint is not None:
        lines.append(("checkpoint", str(summary.checkpoint)))
    lines += summary.commands.items()
    width = max(len(words) for words, _ in lines)
    for words, value in lines:
        # soft_wrap: a path or command that the terminal wraps can still be copied in one piece.
        console.print(Text.assemble((f"{words:<{width}}  ", "bold"), value), soft_wrap=True)
