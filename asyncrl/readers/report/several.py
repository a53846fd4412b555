"""The report of several runs: their curves in one picture, what each reached, and which is better."""

import io
from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from asyncrl.observe.metrics.charts import (
    ACCURACY,
    BLUE,
    BOUNDS,
    CHARTS,
    GREEN,
    LOSS,
    MUTED,
    ORANGE,
    PURPLE,
    TICKS,
    Chart,
)
from asyncrl.observe.terminal.curves import NO_METADATA, STYLE, points_of
from asyncrl.readers.compare.recorded import RecordedRun, open_runs
from asyncrl.readers.compare.run_comparison import compare, sentences_of, tables_of
from asyncrl.readers.report.page import render_page, themed
from asyncrl.readers.report.tables import as_markdown

COLORS = (BLUE, ORANGE, GREEN, PURPLE)
LINES = ("-", "--", ":", "-.")
"""A fifth run has the first colour again, with the next kind of line."""
HELDOUT = replace(ACCURACY, title="Held-out accuracy, greedy")
COLUMNS = [
    replace(
        chart,
        title=f"{chart.title}: {chart.lines[0][1]}" if len(chart.lines) > 1 else chart.title,
        heldout=None,
    )
    for chart in (*(chart for chart in CHARTS if chart.is_compared), LOSS)
]
"""Charts beside that of held-out accuracy; those that no run measured are left out."""


def texts_of_several(folders: Sequence[Path], formats: Sequence[str]) -> dict[str, str]:
    """Format, html or markdown -> the text of its file, for those in `formats`. Raises InputError."""
    runs = open_runs(folders)
    comparison = compare(runs)
    title = " and ".join(run.label for run in runs) if len(runs) == 2 else f"{len(runs)} runs"
    recipe, results = tables_of(comparison)
    tables = [replace(results, title="Results"), replace(recipe, title="Recipes")]
    remarks = comparison["remarks"]
    sentences = [sentence for pair in comparison["pairs"] for sentence in sentences_of(pair)]
    texts = {}
    if "html" in formats:
        texts["html"] = render_page(
            "report/several.html",
            title=title,
            labels=[run.label for run in runs],
            remarks=remarks,
            curves=themed(draw_runs(runs)),
            sentences=sentences,
            method=comparison["method"],
            tables=tables,
        )
    if "markdown" in formats:
        texts["markdown"] = as_markdown(title, [*remarks, *sentences, comparison["method"]], tables)
    return texts


def draw_runs(runs: Sequence[RecordedRun]) -> str:
    """An <svg> element: a panel for each column that a run has measured, a line for each run."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = [HELDOUT, *(panel for panel in COLUMNS if any(_points(run, panel) for run in runs))]
    num_rows = -(-len(panels) // 2)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11, 3.2 * num_rows + 0.4), layout="constrained", facecolor="white")
        FigureCanvasAgg(figure)
        last = max((row["step"] for run in runs for row in run.metrics.steps), default=1)
        for axis, panel in zip_longest(figure.subplots(num_rows, 2, squeeze=False).flat, panels):
            if panel is None:
                axis.set_axis_off()
                continue
            _draw(axis, panel, runs)
            axis.set_xlim(-0.015 * last, 1.015 * last)
        legend = figure.legend(handles=_legend(runs), loc="outside upper left", ncols=min(4, len(runs)))
        for text in legend.get_texts():
            # What a user named is no formula.
            text.set_parse_math(False)
        svg = io.BytesIO()
        figure.savefig(svg, format="svg", metadata=NO_METADATA)
    document = svg.getvalue().decode()
    return document[document.index("<svg") :]


def _legend(runs: Sequence[RecordedRun]) -> list[Any]:
    from matplotlib.lines import Line2D

    return [Line2D([], [], label=run.label, linewidth=2, **_look(place)) for place, run in enumerate(runs)]


def _look(place: int) -> dict[str, Any]:
    row, column = divmod(place, len(COLORS))
    return {"color": COLORS[column], "linestyle": LINES[row % len(LINES)]}


def _points(run: RecordedRun, panel: Chart) -> list[tuple[int, float]]:
    if panel.heldout is not None:
        return points_of(run.evaluations(), panel.heldout)
    return points_of(run.metrics.steps, panel.lines[0][0], is_log=panel.is_log)


def _draw(axis: Any, panel: Chart, runs: Sequence[RecordedRun]) -> None:
    axis.set_title(panel.title, pad=8)
    for place, run in enumerate(runs):
        points = _points(run, panel)
        if not points:
            continue
        marker = "o" if panel.heldout is not None or len(points) == 1 else ""
        axis.plot(*zip(*points, strict=True), linewidth=1.8, marker=marker, markersize=4, **_look(place))
        if panel.heldout is not None:
            low, high = (points_of(run.evaluations(), end) for end in BOUNDS[panel.heldout])
            ends = ([value for _, value in side] for side in (low, high))
            color = _look(place)["color"]
            axis.fill_between([step for step, _ in low], *ends, color=color, alpha=0.14, linewidth=0)
    axis.set_xlabel("optimizer step")
    if not axis.lines:
        axis.text(0.5, 0.5, "not measured", transform=axis.transAxes, ha="center", color=MUTED)
    elif panel.is_log:
        axis.set_yscale("log")
    else:
        axis.set_ylim(min(0.0, 1.12 * axis.dataLim.y0), 1.12 * max(axis.dataLim.y1, 1e-9))
        axis.yaxis.set_major_formatter(lambda value, _: TICKS[panel.unit](value))
    axis.xaxis.get_major_locator().set_params(integer=True)
