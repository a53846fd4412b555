"""The curves of a comparison as a PNG: held-out accuracy over steps, tokens, time and dollars, and the
differences to the first group at each step."""

import io
from pathlib import Path
from typing import Any

from asyncrl.errors import InputError
from asyncrl.observe.metrics.formats import compact, duration
from asyncrl.observe.terminal.curves import BLUE, GREEN, MUTED, ORANGE, PURPLE, STYLE
from asyncrl.readers.compare.curves import Point
from asyncrl.readers.compare.run_comparison import Comparison
from asyncrl.system.rounding import as_percent

COLORS = (BLUE, ORANGE, GREEN, PURPLE, "#56b4e9", "#e69f00", MUTED)
STEP, TOKENS, SECONDS, DOLLARS = "step", "tokens_generated", "seconds", "dollars"
AXES = {
    STEP: "optimizer step",
    TOKENS: "tokens generated",
    SECONDS: "training time",
    DOLLARS: "dollars",
}


def write_picture(comparison: Comparison, path: Path) -> None:
    """Raises InputError where `path` cannot be written."""
    picture = _draw(comparison)
    try:
        path.write_bytes(picture)
    except OSError as error:
        raise InputError(f"--plot {path} cannot be written: {error.strerror}.") from error


def _draw(comparison: Comparison) -> bytes:
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    costs = [name for name in AXES if name != DOLLARS or _has_dollars(comparison)]
    panels = [*costs, "difference"]
    with matplotlib.rc_context(STYLE):
        layout = ConstrainedLayoutEngine(h_pad=0.12, w_pad=0.12, hspace=0.04, wspace=0.03)
        num_rows = (len(panels) + 1) // 2
        figure = Figure(figsize=(11, 3.7 * num_rows), dpi=130, layout=layout, facecolor="white")
        FigureCanvasAgg(figure)
        axes = list(figure.subplots(num_rows, 2, squeeze=False).flat)
        for axis, name in zip(axes, panels, strict=False):
            _draw_differences(axis, comparison) if name == "difference" else _draw_accuracy(
                axis, comparison, name
            )
        for axis in axes[len(panels) :]:
            axis.set_visible(False)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _draw_accuracy(axis: Any, comparison: Comparison, name: str) -> None:
    axis.set_title(f"Held-out accuracy over {AXES[name]}")
    for color, group in zip(_colors(len(comparison["groups"])), comparison["groups"], strict=True):
        points = [point for point in group["curve"] if _x(point, name) is not None]
        xs = [_x(point, name) for point in points]
        axis.fill_between(
            xs, [p["low"] for p in points], [p["high"] for p in points], color=color, alpha=0.15, linewidth=0
        )
        values = [point["greedy_accuracy"] for point in points]
        axis.plot(xs, values, color=color, linewidth=2, marker="o", markersize=3.5, label=group["label"])
    axis.set_ylim(0, 1.04)
    axis.yaxis.set_major_formatter(lambda value, _: as_percent(value))
    axis.xaxis.set_major_formatter(lambda value, _: _tick(value, name))
    axis.set_xlabel(AXES[name])
    axis.margins(x=0.02)
    axis.legend(loc="lower left", bbox_to_anchor=(-0.015, 0.985), ncols=4, handlelength=1.4)


def _draw_differences(axis: Any, comparison: Comparison) -> None:
    axis.set_title("Difference in points, 95% over common tasks")
    colors = _colors(len(comparison["groups"]))[1:]
    axis.axhline(0, color=MUTED, linewidth=1)
    for color, pair in zip(colors, comparison["pairs"], strict=True):
        steps = [found["step"] for found in pair["steps"]]
        axis.fill_between(
            steps,
            [100 * found["low"] for found in pair["steps"]],
            [100 * found["high"] for found in pair["steps"]],
            color=color,
            alpha=0.15,
            linewidth=0,
        )
        axis.plot(
            steps,
            [100 * found["mean"] for found in pair["steps"]],
            color=color,
            linewidth=2,
            marker="o",
            markersize=3.5,
            label=f"{pair['second']} - {pair['first']}",
        )
    axis.set_xlabel(AXES[STEP])
    axis.margins(x=0.02)
    axis.legend(loc="lower left", bbox_to_anchor=(-0.015, 0.985), ncols=3, handlelength=1.4)
    if not any(pair["steps"] for pair in comparison["pairs"]):
        axis.tick_params(left=False, labelleft=False, labelbottom=False)
        axis.text(0.5, 0.6, "no answers per task", transform=axis.transAxes, ha="center", color=MUTED)


def _has_dollars(comparison: Comparison) -> bool:
    return any(point["dollars"] is not None for group in comparison["groups"] for point in group["curve"])


def _x(point: Point, name: str) -> float | None:
    value: float | None = point[name]  # type: ignore[literal-required]
    return value


def _tick(value: float, name: str) -> str:
    match name:
        case "tokens_generated":
            return compact(value)
        case "seconds":
            return duration(value)
    return f"{value:g}"


def _colors(num: int) -> list[str]:
    return [COLORS[index % len(COLORS)] for index in range(num)]
