"""The curves of a run as a picture: accuracy, length, staleness, mismatch, throughput, idle time.

Matplotlib is imported only when a picture is drawn, with the Agg canvas and without pyplot's global state.
"""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from asyncrl.observe.metrics.metrics_file import Metrics, Row
from asyncrl.system.rounding import as_percent

INK, MUTED, GRID = "#1f2430", "#6b7280", "#e5e7eb"
# Okabe-Ito: distinct with every kind of color vision.
BLUE, ORANGE, GREEN, PURPLE = "#0072b2", "#d55e00", "#009e73", "#aa5a9c"

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


@dataclass(frozen=True, slots=True)
class Picture:
    """One drawing, twice."""

    svg: str
    """An <svg> element for a page."""
    png: bytes


def runs_as_svg(runs: Sequence[tuple[str, Metrics]]) -> str:
    """An <svg> element: held-out accuracy and response length of several runs, a line each, by name."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11, 4), dpi=130, layout="constrained", facecolor="white")
        FigureCanvasAgg(figure)
        accuracy, length = figure.subplots(1, 2)
        colors = matplotlib.color_sequences["tab10"]
        for index, (name, metrics) in enumerate(runs):
            color = colors[index % len(colors)]
            _line(accuracy, metrics.evaluations, "greedy_accuracy", name, color)
            _line(length, metrics.steps, "response_tokens_mean", name, color)
        accuracy.set_title("Held-out accuracy, greedy")
        length.set_title("Response length (tokens)")
        for panel in (accuracy, length):
            _from_zero(panel)
            panel.set_xlabel("optimizer step")
            if panel.lines:
                panel.legend(fontsize=8)
            else:
                _say_nothing_was_measured(panel)
        accuracy.yaxis.set_major_formatter(lambda value, _: as_percent(value))
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return _element(buffer.getvalue())


def _element(document: bytes) -> str:
    svg = document.decode()
    return svg[svg.index("<svg") :]


def draw_curves(metrics: Metrics) -> Picture:
    """Takes seconds, most of them for the layout."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    with matplotlib.rc_context(STYLE):
        layout = ConstrainedLayoutEngine(h_pad=0.12, w_pad=0.12, hspace=0.04, wspace=0.03)
        figure = Figure(figsize=(11, 11), dpi=130, layout=layout, facecolor="white")
        FigureCanvasAgg(figure)
        axes = figure.subplots(3, 2, sharex=True)
        for panel, draw in zip(axes.flat, PANELS, strict=True):
            draw(panel, metrics)
            panel.margins(x=0.015)
            if not panel.lines:
                _say_nothing_was_measured(panel)
        for panel in axes[-1]:
            panel.set_xlabel("optimizer step")
            panel.xaxis.get_major_locator().set_params(integer=True)
        svg, png = io.BytesIO(), io.BytesIO()
        figure.savefig(svg, format="svg", metadata={"Date": None})
        # The layout stays as it is now.
        figure.set_layout_engine("none")
        figure.savefig(png, format="png")
    return Picture(_element(svg.getvalue()), png.getvalue())


def _accuracy(axis: Any, metrics: Metrics) -> None:
    axis.set_title("Accuracy")
    _line(axis, metrics.steps, "correct_mean", "training samples", ORANGE, width=1.2)
    rows = [row for row in metrics.evaluations if row.get("greedy_accuracy") is not None]
    if rows:
        steps = [row["step"] for row in rows]
        axis.fill_between(
            steps,
            [row["greedy_low"] for row in rows],
            [row["greedy_high"] for row in rows],
            color=BLUE,
            alpha=0.18,
            linewidth=0,
        )
        values = [row["greedy_accuracy"] for row in rows]
        axis.plot(steps, values, color=BLUE, linewidth=2, marker="o", markersize=4, label="held-out, greedy")
        _annotate_ends(axis, steps, values, lambda value: as_percent(value), BLUE)
    axis.set_ylim(0, 1.12)
    axis.yaxis.set_major_formatter(lambda value, _: as_percent(value))
    _legend(axis)


def _length(axis: Any, metrics: Metrics) -> None:
    axis.set_title("Response length (tokens)")
    _line(axis, metrics.steps, "response_tokens_mean", "training samples", PURPLE)
    rows = [row for row in metrics.evaluations if row.get("response_tokens_mean") is not None]
    if rows:
        steps, values = [row["step"] for row in rows], [row["response_tokens_mean"] for row in rows]
        axis.plot(steps, values, color=BLUE, linestyle="", marker="o", markersize=5, label="held-out, greedy")
        _annotate_ends(axis, steps, values, lambda value: f"{value:.0f}", BLUE)
    _from_zero(axis)
    _legend(axis)


def _staleness(axis: Any, metrics: Metrics) -> None:
    axis.set_title("Staleness (versions)")
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    _line(axis, metrics.steps, "staleness_max", "oldest token", MUTED, width=1.2)
    _line(axis, metrics.steps, "staleness_mean", "mean", BLUE)
    _from_zero(axis)
    _legend(axis)


def _mismatch(axis: Any, metrics: Metrics) -> None:
    axis.set_title("Behavior against trainer, KL (nats per token)")
    _line(axis, metrics.steps, "staleness_kl", "lag ≥ 1: with staleness", ORANGE, is_log=True)
    _line(axis, metrics.steps, "mismatch_kl", "lag 0: engines alone", BLUE, is_log=True)
    if axis.lines:
        axis.set_yscale("log")
    _legend(axis)


def _throughput(axis: Any, metrics: Metrics) -> None:
    axis.set_title("Throughput (tokens per second)")
    _line(axis, metrics.steps, "tokens_per_second", "trainer", ORANGE)
    _line(axis, metrics.steps, "rollout_tokens_per_second", "rollout", BLUE)
    _from_zero(axis)
    axis.yaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}k" if value >= 1000 else f"{value:g}")
    _legend(axis)


def _idle(axis: Any, metrics: Metrics) -> None:
    axis.set_title("Idle time and truncated weights")
    _line(axis, metrics.steps, "trainer_idle_share", "trainer idle", ORANGE)
    _line(axis, metrics.steps, "rollout_idle_share", "rollout idle", BLUE)
    _line(axis, metrics.steps, "capped_share", "tokens with capped weight", GREEN, width=1.2)
    _from_zero(axis)
    axis.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g}%")
    _legend(axis)


PANELS: Sequence[Callable[[Any, Metrics], None]] = (
    _accuracy,
    _length,
    _staleness,
    _mismatch,
    _throughput,
    _idle,
)


def _line(
    axis: Any,
    rows: Sequence[Row],
    name: str,
    label: str,
    color: str,
    *,
    width: float = 2.0,
    is_log: bool = False,
) -> None:
    """A curve over the steps that measured `name`; on a log axis, only values above zero."""
    points = [
        (row["step"], row[name])
        for row in rows
        if row.get(name) is not None and (row[name] > 0 or not is_log)
    ]
    if points:
        steps, values = zip(*points, strict=True)
        axis.plot(
            steps, values, color=color, linewidth=width, label=label, marker="." if len(points) == 1 else ""
        )


def _annotate_ends(
    axis: Any, steps: Sequence[int], values: Sequence[float], text: Callable[[float], str], color: str
) -> None:
    """Writes the first and last value next to their points."""
    ends = {0: "left", len(steps) - 1: "right"}
    for index, side in ends.items():
        axis.annotate(
            text(values[index]),
            (steps[index], values[index]),
            textcoords="offset points",
            xytext=(0, 8),
            ha=side,
            color=color,
            fontweight="bold",
        )


def _from_zero(axis: Any) -> None:
    """Zero at the bottom, 12% of space above the highest value."""
    highest = max((max(line.get_ydata()) for line in axis.lines), default=0.0)
    axis.set_ylim(0, 1.12 * highest if highest > 0 else 1.0)


def _say_nothing_was_measured(axis: Any) -> None:
    axis.grid(False)
    axis.tick_params(left=False, labelleft=False)
    axis.text(0.5, 0.5, "not measured", transform=axis.transAxes, ha="center", color=MUTED)


def _legend(axis: Any) -> None:
    """A row between title and curves, so that it hides none of them."""
    if axis.get_legend_handles_labels()[0]:
        axis.legend(
            loc="lower left", bbox_to_anchor=(-0.015, 0.985), ncols=3, handlelength=1.4, columnspacing=1.6
        )
