"""pass@k, maj@k and best@k over k as a picture: a panel for each measure, a line for each model."""

import io
from collections.abc import Sequence
from typing import Any

from asyncrl.observe.metrics.charts import BLUE, GREEN, ORANGE, PURPLE
from asyncrl.observe.metrics.sample_curves import TITLES, Compared, chosen
from asyncrl.observe.terminal.curves import NO_METADATA, STYLE
from asyncrl.system.rounding import as_percent

COLORS = (BLUE, ORANGE, GREEN, PURPLE)
"""The base model's first."""


def draw_samples(sets: Sequence[tuple[str, Compared]]) -> str:
    """An <svg> element with a row of panels for each (evaluation set, curves of its models); empty without
    any. Takes seconds."""
    if not sets:
        return ""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    num_columns = max(len(compared["curves"]) for _, compared in sets)
    with matplotlib.rc_context(STYLE):
        layout = ConstrainedLayoutEngine(h_pad=0.12, w_pad=0.12, hspace=0.04, wspace=0.03)
        size = (5.5 * max(2, num_columns), 3.8 * len(sets))
        figure = Figure(figsize=size, layout=layout, facecolor="white")
        FigureCanvasAgg(figure)
        axes = figure.subplots(len(sets), max(2, num_columns), squeeze=False)
        for row, (name, compared) in zip(axes, sets, strict=True):
            for axis, measure in zip(row, compared["curves"], strict=False):
                _draw(axis, f"{name}: {TITLES[measure].partition(':')[0]}", compared, measure)
            for axis in row[len(compared["curves"]) :]:
                axis.set_axis_off()
        svg = io.BytesIO()
        figure.savefig(svg, format="svg", metadata=NO_METADATA)
    document = svg.getvalue().decode()
    return document[document.index("<svg") :]


def _draw(axis: Any, title: str, compared: Compared, measure: str) -> None:
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
    legend = axis.legend(loc="lower left", bbox_to_anchor=(-0.015, 0.985), ncols=3, handlelength=1.4)
    for text in legend.get_texts():
        text.set_parse_math(False)
