"""Pictures of runs: curves of one and of several, accuracy over k, a card to share.

Matplotlib is imported only when a picture is drawn, with the Agg canvas and without pyplot's global state.
"""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import zip_longest
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
    REWARD,
    TICKS,
    Chart,
    learns_rows,
    report_charts,
)
from asyncrl.observe.metrics.sample_curves import TITLES, Compared, chosen
from asyncrl.readers.compare.recorded import RecordedRun
from asyncrl.run.metrics_file import Metrics, Row
from asyncrl.system.words import as_percent

INK, GRID = "#1f2430", "#e5e7eb"
COLORS = (BLUE, ORANGE, GREEN, PURPLE)
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


@contextmanager
def drawn(width: float, height: float, **options: Any) -> Iterator[Any]:
    """A figure of this size in inches, to be drawn and saved inside the block. `style` adds to STYLE."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE | options.pop("style", {})):
        figure = Figure(figsize=(width, height), facecolor="white", **options)
        FigureCanvasAgg(figure)
        yield figure


def as_svg(figure: Any) -> str:
    """An <svg> element for a page."""
    svg = io.BytesIO()
    figure.savefig(svg, format="svg", metadata=NO_METADATA)
    document = svg.getvalue().decode()
    return document[document.index("<svg") :]


def _png(figure: Any) -> bytes:
    png = io.BytesIO()
    figure.savefig(png, format="png")
    return png.getvalue()


def _over_steps(axis: Any) -> None:
    axis.set_xlabel("optimizer step")
    axis.xaxis.get_major_locator().set_params(integer=True)


def _plain_legend(legend: Any) -> None:
    """Shows names as they are: a user's name is no formula."""
    for text in legend.get_texts():
        text.set_parse_math(False)


@dataclass(frozen=True, slots=True)
class Picture:
    """One drawing, twice."""

    svg: str
    png: bytes


WIDTH_INCHES, PANEL_INCHES = 11, 3.625


def draw_curves(metrics: Metrics) -> Picture:
    """The curves of a run. Takes a second or two of CPU."""
    panels = report_charts(metrics)
    num_rows = len(panels) // 2
    with drawn(WIDTH_INCHES, PANEL_INCHES * num_rows, dpi=130) as figure:
        axes = figure.subplots(num_rows, 2, sharex=True, gridspec_kw=_margins(num_rows))
        for axis, panel in zip(axes.flat, panels, strict=True):
            _draw_panel(axis, panel, metrics)
        for axis in axes[-1]:
            _over_steps(axis)
        return Picture(as_svg(figure), _png(figure))


def _margins(num_rows: int) -> dict[str, float]:
    """Shares of the figure around the panels. Fixed: a layout engine draws all words once more."""
    height = PANEL_INCHES * num_rows
    top, bottom, between = 0.62, 0.57, 0.82
    panel = (height - top - bottom - (num_rows - 1) * between) / num_rows
    return {
        "left": 0.72 / WIDTH_INCHES,
        "right": 1 - 0.17 / WIDTH_INCHES,
        "wspace": 0.15,
        "top": 1 - top / height,
        "bottom": bottom / height,
        "hspace": between / panel,
    }


def _draw_panel(axis: Any, panel: Chart, metrics: Metrics) -> None:
    axis.set_title(panel.title)
    axis.margins(x=0.015)
    for name, label, color in panel.lines:
        points = _points_of(metrics.steps, name, is_log=panel.is_log)
        if points:
            marker = "." if len(points) == 1 else ""
            axis.plot(*zip(*points, strict=True), color=color, linewidth=1.6, label=label, marker=marker)
    if panel.heldout is not None:
        _draw_heldout(axis, panel, metrics.evaluations)
    _scale(axis, panel)
    if axis.lines:
        # A row between title and curves, so that it hides none of them.
        axis.legend(
            loc="lower left", bbox_to_anchor=(-0.015, 0.985), ncols=3, handlelength=1.4, columnspacing=1.6
        )


def _scale(axis: Any, panel: Chart) -> None:
    """The vertical axis for the lines that are drawn; words where there is none."""
    if not axis.lines:
        axis.grid(False)
        axis.tick_params(left=False, labelleft=False)
        axis.text(0.5, 0.5, "not measured", transform=axis.transAxes, ha="center", color=MUTED)
    elif panel.is_log:
        axis.set_yscale("log")
    else:
        lowest, highest = axis.dataLim.y0, axis.dataLim.y1
        axis.set_ylim(min(0.0, 1.12 * lowest), 1.12 * highest if highest > 0 else 0.0 if lowest < 0 else 1.0)
        axis.yaxis.set_major_formatter(lambda value, _: TICKS[panel.unit](value))


def _draw_heldout(axis: Any, panel: Chart, evaluations: Sequence[Row]) -> None:
    """Points, with their intervals where they have them, and words at the first and the last one."""
    from matplotlib.patheffects import withStroke

    points = _points_of(evaluations, str(panel.heldout))
    if not points:
        return
    axis.plot(*zip(*points, strict=True), color=BLUE, linewidth=2, marker="o", label="held-out, greedy")
    _draw_bounds(axis, panel, evaluations, BLUE, alpha=0.18)
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


def _draw_bounds(axis: Any, panel: Chart, evaluations: Sequence[Row], color: str, *, alpha: float) -> None:
    if panel.heldout in BOUNDS:
        low, high = (_points_of(evaluations, name) for name in BOUNDS[panel.heldout])
        ends = ([value for _, value in side] for side in (low, high))
        axis.fill_between([step for step, _ in low], *ends, color=color, alpha=alpha, linewidth=0)


def _points_of(rows: Sequence[Row], name: str, *, is_log: bool = False) -> list[tuple[int, float]]:
    """(step, value) of the rows that measured it; on a log axis, only values above zero."""
    measured = ((row["step"], row[name]) for row in rows if row.get(name) is not None)
    return [(step, value) for step, value in measured if value > 0 or not is_log]


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


def draw_runs(runs: Sequence[RecordedRun]) -> str:
    """An <svg> element: a panel for each column that a run has measured, a line for each run."""
    from matplotlib.lines import Line2D

    panels = [HELDOUT, *(panel for panel in COLUMNS if any(_run_points(run, panel) for run in runs))]
    num_rows = -(-len(panels) // 2)
    with drawn(WIDTH_INCHES, 3.2 * num_rows + 0.4, layout="constrained") as figure:
        last = max((row["step"] for run in runs for row in run.metrics.steps), default=1)
        for axis, panel in zip_longest(figure.subplots(num_rows, 2, squeeze=False).flat, panels):
            if panel is None:
                axis.set_axis_off()
                continue
            _draw_runs_panel(axis, panel, runs)
            axis.set_xlim(-0.015 * last, 1.015 * last)
        handles = [Line2D([], [], label=run.label, linewidth=2, **_look(at)) for at, run in enumerate(runs)]
        _plain_legend(figure.legend(handles=handles, loc="outside upper left", ncols=min(4, len(runs))))
        return as_svg(figure)


def _look(place: int) -> dict[str, Any]:
    row, column = divmod(place, len(COLORS))
    return {"color": COLORS[column], "linestyle": LINES[row % len(LINES)]}


def _run_points(run: RecordedRun, panel: Chart) -> list[tuple[int, float]]:
    if panel.heldout is not None:
        return _points_of(run.evaluations(), panel.heldout)
    return _points_of(run.metrics.steps, panel.lines[0][0], is_log=panel.is_log)


def _draw_runs_panel(axis: Any, panel: Chart, runs: Sequence[RecordedRun]) -> None:
    axis.set_title(panel.title, pad=8)
    for place, run in enumerate(runs):
        points, look = _run_points(run, panel), _look(place)
        if points:
            marker = "o" if panel.heldout is not None or len(points) == 1 else ""
            axis.plot(*zip(*points, strict=True), linewidth=1.8, marker=marker, markersize=4, **look)
            _draw_bounds(axis, panel, run.evaluations(), look["color"], alpha=0.14)
    _scale(axis, panel)
    _over_steps(axis)


def draw_samples(sets: Sequence[tuple[str, Compared]]) -> str:
    """An <svg> element with a row of panels for each (evaluation set, curves of its models, the base model's
    first); empty without any. Takes seconds."""
    if not sets:
        return ""
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    num_columns = max(2, *(len(compared["curves"]) for _, compared in sets))
    layout = ConstrainedLayoutEngine(h_pad=0.12, w_pad=0.12, hspace=0.04, wspace=0.03)
    with drawn(5.5 * num_columns, 3.8 * len(sets), layout=layout) as figure:
        axes = figure.subplots(len(sets), num_columns, squeeze=False)
        for row, (name, compared) in zip(axes, sets, strict=True):
            for axis, measure in zip(row, compared["curves"], strict=False):
                _draw_over_k(axis, f"{name}: {TITLES[measure].partition(':')[0]}", compared, measure)
            for axis in row[len(compared["curves"]) :]:
                axis.set_axis_off()
        return as_svg(figure)


def _draw_over_k(axis: Any, title: str, compared: Compared, measure: str) -> None:
    # What a user named is no formula.
    axis.set_title(title, parse_math=False)
    most, highest = 1, 0.0
    for place, (label, curve) in enumerate(zip(compared["models"], compared["curves"][measure], strict=True)):
        if curve is None:
            continue
        color = COLORS[place % len(COLORS)]
        ks = range(1, len(curve["mean"]) + 1)
        marker = "o" if len(ks) == 1 else ""
        axis.plot(ks, curve["mean"], color=color, linewidth=2, label=label, marker=marker)
        axis.fill_between(ks, curve["low"], curve["high"], color=color, alpha=0.16, linewidth=0)
        most, highest = max(most, len(ks)), max(highest, *curve["high"])
    axis.set_xscale("log", base=2)
    axis.set_xticks(chosen(most), labels=[str(k) for k in chosen(most)])
    axis.minorticks_off()
    axis.set_xlabel("k")
    axis.set_ylim(0, min(1.02, 1.05 * highest or 1.0))
    axis.yaxis.set_major_formatter(lambda value, _: as_percent(value))
    _plain_legend(axis.legend(loc="lower left", bbox_to_anchor=(-0.015, 0.985), ncols=3, handlelength=1.4))


WIDTH, HEIGHT = 1200, 630
"""Pixels, as pages that show a link's picture expect it."""
_DPI = 100
_LARGE = {"font.size": 14, "axes.titlesize": 16, "legend.fontsize": 13, "axes.titlepad": 32}


def draw_card(metrics: Metrics, name: str, result: str, facts: str) -> bytes:
    """A PNG with two panels below three lines of words; takes a second of CPU."""
    panels = (LOSS if learns_rows(metrics) else REWARD, ACCURACY)
    with drawn(WIDTH / _DPI, HEIGHT / _DPI, dpi=_DPI, style=_LARGE) as figure:
        axes = figure.subplots(
            1, 2, gridspec_kw={"left": 0.065, "right": 0.97, "top": 0.66, "bottom": 0.125, "wspace": 0.18}
        )
        for axis, panel in zip(axes, panels, strict=True):
            _draw_panel(axis, panel, metrics)
            _over_steps(axis)
        lines = ((0.915, name, 26, INK), (0.845, result, 16, INK), (0.79, facts, 13, MUTED))
        for height, text, size, color in lines:
            # What a user named is no formula.
            figure.text(0.03, height, text, fontsize=size, color=color, parse_math=False)
        figure.text(0.97, 0.915, "asyncrl", fontsize=16, color=MUTED, ha="right")
        return _png(figure)
