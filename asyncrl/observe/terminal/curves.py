"""The curves of a run as a picture: accuracy, reward, length, staleness, mismatch, throughput, idle time.

Matplotlib is imported only when a picture is drawn, with the Agg canvas and without pyplot's global state.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from asyncrl.observe.metrics.charts import BLUE, BOUNDS, MUTED, TICKS, Chart, report_charts
from asyncrl.run.metrics_file import Metrics, Row

INK, GRID = "#1f2430", "#e5e7eb"
WIDTH_INCHES, PANEL_INCHES = 11, 3.625

STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlepad": 26,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "ytick.left": False,
    "legend.frameon": False,
    "legend.fontsize": 9,
    # Fixed ids: the same run gives the same file.
    "svg.hashsalt": "asyncrl",
}

NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
"""Nothing of what an <svg> would say of itself: addresses, and the time."""


@dataclass(frozen=True, slots=True)
class Picture:
    """One drawing, twice."""

    svg: str
    """An <svg> element for a page."""
    png: bytes


def draw_curves(metrics: Metrics) -> Picture:
    """Takes a second or two of CPU."""
    panels = report_charts(metrics)
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        num_rows = len(panels) // 2
        figure = Figure(figsize=(WIDTH_INCHES, PANEL_INCHES * num_rows), dpi=130, facecolor="white")
        FigureCanvasAgg(figure)
        axes = figure.subplots(num_rows, 2, sharex=True, gridspec_kw=_margins(num_rows))
        for axis, panel in zip(axes.flat, panels, strict=True):
            draw_panel(axis, panel, metrics)
        for axis in axes[-1]:
            axis.set_xlabel("optimizer step")
            axis.xaxis.get_major_locator().set_params(integer=True)
        svg, png = io.BytesIO(), io.BytesIO()
        figure.savefig(svg, format="svg", metadata=NO_METADATA)
        figure.savefig(png, format="png")
    document = svg.getvalue().decode()
    return Picture(document[document.index("<svg") :], png.getvalue())


def _margins(num_rows: int) -> dict[str, float]:
    """Shares of the figure around the panels. Fixed: a layout engine draws all words once more."""
    height = PANEL_INCHES * num_rows
    top, bottom, between = 0.62, 0.57, 0.82
    drawn = (height - top - bottom - (num_rows - 1) * between) / num_rows
    return {
        "left": 0.72 / WIDTH_INCHES,
        "right": 1 - 0.17 / WIDTH_INCHES,
        "wspace": 0.15,
        "top": 1 - top / height,
        "bottom": bottom / height,
        "hspace": between / drawn,
    }


def draw_panel(axis: Any, panel: Chart, metrics: Metrics) -> None:
    axis.set_title(panel.title)
    axis.margins(x=0.015)
    for name, label, color in panel.lines:
        points = points_of(metrics.steps, name, is_log=panel.is_log)
        if points:
            marker = "." if len(points) == 1 else ""
            axis.plot(*zip(*points, strict=True), color=color, linewidth=1.6, label=label, marker=marker)
    if panel.heldout is not None:
        _draw_heldout(axis, panel, metrics.evaluations)
    if not axis.lines:
        axis.grid(False)
        axis.tick_params(left=False, labelleft=False)
        axis.text(0.5, 0.5, "not measured", transform=axis.transAxes, ha="center", color=MUTED)
        return
    if panel.is_log:
        axis.set_yscale("log")
    else:
        lowest, highest = axis.dataLim.y0, axis.dataLim.y1
        axis.set_ylim(min(0.0, 1.12 * lowest), 1.12 * highest if highest > 0 else 0.0 if lowest < 0 else 1.0)
        axis.yaxis.set_major_formatter(lambda value, _: TICKS[panel.unit](value))
    # A row between title and curves, so that it hides none of them.
    axis.legend(
        loc="lower left", bbox_to_anchor=(-0.015, 0.985), ncols=3, handlelength=1.4, columnspacing=1.6
    )


def _draw_heldout(axis: Any, panel: Chart, evaluations: Sequence[Row]) -> None:
    """Points, with their intervals where they have them, and words at the first and the last one."""
    from matplotlib.patheffects import withStroke

    points = points_of(evaluations, str(panel.heldout))
    if not points:
        return
    axis.plot(*zip(*points, strict=True), color=BLUE, linewidth=2, marker="o", label="held-out, greedy")
    if panel.heldout in BOUNDS:
        low, high = (points_of(evaluations, name) for name in BOUNDS[panel.heldout])
        steps = [step for step, _ in low]
        ends = ([value for _, value in side] for side in (low, high))
        axis.fill_between(steps, *ends, color=BLUE, alpha=0.18, linewidth=0)
    # Readable also across another curve.
    halo = withStroke(linewidth=3, foreground="white")
    for (step, value), side in ((points[0], "left"), (points[-1], "right")):
        axis.annotate(
            TICKS[panel.unit](value),
            (step, value),
            textcoords="offset points",
            xytext=(0, 8),
            ha=side,
            color=BLUE,
            fontweight="bold",
            path_effects=[halo],
        )


def points_of(rows: Sequence[Row], name: str, *, is_log: bool = False) -> list[tuple[int, float]]:
    """(step, value) of the rows that measured it; on a log axis, only values above zero."""
    measured = ((row["step"], row[name]) for row in rows if row.get(name) is not None)
    return [(step, value) for step, value in measured if value > 0 or not is_log]
