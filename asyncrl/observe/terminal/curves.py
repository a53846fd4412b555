"""The curves of a run as a picture: accuracy, reward, length, staleness, mismatch, throughput, idle time.

Matplotlib is imported only when a picture is drawn, with the Agg canvas and without pyplot's global state.
"""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from asyncrl.observe.metrics.metrics_file import Metrics, Row
from asyncrl.system.rounding import as_percent

INK, MUTED, GRID = "#1f2430", "#6b7280", "#e5e7eb"
WIDTH_INCHES, PANEL_INCHES = 11, 3.625
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

NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
"""Nothing of what an <svg> would say of itself: addresses, and the time."""


@dataclass(frozen=True, slots=True)
class Picture:
    """One drawing, twice."""

    svg: str
    """An <svg> element for a page."""
    png: bytes


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    lines: Sequence[tuple[str, str, str]]
    """Column of the steps, label, colour."""
    tick: Callable[[float], str]
    """Words at the vertical axis, and at the ends of `heldout`."""
    heldout: str | None = None
    """Column of the held-out evaluations, drawn as points."""
    is_log: bool = False


def _thousands(value: float) -> str:
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"


REWARD = Panel("Reward", [("reward_mean", "training samples", ORANGE)], lambda value: f"{value:.2g}")
LENGTH = Panel(
    "Response length (tokens)",
    [("response_tokens_mean", "training samples", PURPLE)],
    lambda value: f"{value:.0f}",
    "response_tokens_mean",
)
THROUGHPUT = Panel(
    "Throughput (tokens per second)",
    [("tokens_per_second", "trainer", ORANGE), ("rollout_tokens_per_second", "rollout", BLUE)],
    _thousands,
)
ACCURACY = Panel("Accuracy", [("correct_mean", "training samples", ORANGE)], as_percent, "greedy_accuracy")
PANELS = (
    ACCURACY,
    REWARD,
    LENGTH,
    Panel(
        "Response length by correctness (tokens)",
        [
            ("response_tokens_mean_by_outcome_correct", "correct", GREEN),
            ("response_tokens_mean_by_outcome_wrong", "wrong", ORANGE),
        ],
        lambda value: f"{value:.0f}",
    ),
    Panel(
        "Reflection words (per response)",
        [
            ("reflection_words_mean_by_outcome_correct", "correct", GREEN),
            ("reflection_words_mean_by_outcome_wrong", "wrong", ORANGE),
        ],
        lambda value: f"{value:.2g}",
    ),
    Panel("Entropy (nats per token)", [("entropy", "the trainer's", GREEN)], lambda value: f"{value:.2g}"),
    Panel(
        "Staleness (versions)",
        [("staleness_max", "oldest token", MUTED), ("staleness_mean", "mean", BLUE)],
        lambda value: f"{value:g}",
    ),
    Panel(
        "Behavior against trainer, KL (nats per token)",
        [
            ("staleness_kl", "lag ≥ 1: with staleness", ORANGE),
            ("mismatch_kl", "lag 0: engines alone", BLUE),
        ],
        lambda value: f"{value:.0e}",
        is_log=True,
    ),
    THROUGHPUT,
    Panel(
        "Idle time and truncated weights",
        [
            ("trainer_idle_share", "trainer idle", ORANGE),
            ("rollout_idle_share", "rollout idle", BLUE),
            ("capped_share", "tokens with capped weight", GREEN),
        ],
        lambda value: f"{100 * value:g}%",
    ),
)


OF_ROWS = (
    Panel(
        "Loss (nats)",
        [("loss", "training rows", ORANGE), ("heldout_loss", "held-out rows", BLUE)],
        lambda value: f"{value:.3g}",
    ),
    Panel(
        "Pairs whose chosen response gained",
        [("dpo_accuracy", "training pairs", ORANGE), ("heldout_dpo_accuracy", "held-out pairs", BLUE)],
        as_percent,
    ),
    Panel("Accuracy of answers", [], as_percent, "greedy_accuracy"),
    LENGTH,
    Panel("Gradient norm", [("grad_norm", "before clipping", GREEN)], lambda value: f"{value:.3g}"),
    THROUGHPUT,
)
"""Panels of a stage that learns rows."""


def panels_of(metrics: Metrics) -> tuple[Panel, ...]:
    """Those of the stage that the run is in."""
    learns_rows = any("perplexity" in row or "dpo_accuracy" in row for row in metrics.steps[:1])
    return OF_ROWS if learns_rows else PANELS


def draw_curves(metrics: Metrics) -> Picture:
    """Takes a second or two of CPU."""
    panels = panels_of(metrics)
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


def draw_panel(axis: Any, panel: Panel, metrics: Metrics) -> None:
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
        axis.yaxis.set_major_formatter(lambda value, _: panel.tick(value))
    # A row between title and curves, so that it hides none of them.
    axis.legend(
        loc="lower left", bbox_to_anchor=(-0.015, 0.985), ncols=3, handlelength=1.4, columnspacing=1.6
    )


def _draw_heldout(axis: Any, panel: Panel, evaluations: Sequence[Row]) -> None:
    """Points, with their intervals where they have them, and words at the first and the last one."""
    from matplotlib.patheffects import withStroke

    points = points_of(evaluations, str(panel.heldout))
    if not points:
        return
    axis.plot(*zip(*points, strict=True), color=BLUE, linewidth=2, marker="o", label="held-out, greedy")
    if panel.heldout == "greedy_accuracy":
        low, high = (points_of(evaluations, name) for name in ("greedy_low", "greedy_high"))
        steps = [step for step, _ in low]
        ends = ([value for _, value in side] for side in (low, high))
        axis.fill_between(steps, *ends, color=BLUE, alpha=0.18, linewidth=0)
    # Readable also across another curve.
    halo = withStroke(linewidth=3, foreground="white")
    for (step, value), side in ((points[0], "left"), (points[-1], "right")):
        axis.annotate(
            panel.tick(value),
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
