"""Held-out accuracy over all stages of a chain, one after the other, as an <svg> element."""

import io
from collections.abc import Sequence

from asyncrl.observe.metrics.charts import BLUE, MUTED
from asyncrl.observe.terminal.curves import GRID, NO_METADATA, STYLE
from asyncrl.readers.chain.story import StageStory
from asyncrl.system.rounding import as_percent


def draw_accuracy(stages: Sequence[StageStory]) -> str:
    """Empty where no stage evaluated. A selection has no width; a stage that only began has one step's."""
    if not any(stage.curve for stage in stages):
        return ""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11, 3.4), layout="constrained", facecolor="white")
        FigureCanvasAgg(figure)
        axis = figure.subplots()
        begin, ticks = 0, []
        for stage in stages:
            end = begin + max(stage.steps or 0, 1 if stage.curve else 0)
            title = f"{stage.number} {stage.name}"
            if end > begin:
                axis.axvspan(begin, end, color=GRID, alpha=0.0 if stage.number % 2 else 0.5, linewidth=0)
                axis.text((begin + end) / 2, 1.1, title, ha="center", color=MUTED)
                ticks += [(begin, "0"), (end, str(stage.steps))]
            elif stage.selected is not None:
                axis.axvline(begin, color=MUTED, linestyle=":", linewidth=1)
            if stage.curve:
                steps = [begin + point[0] for point in stage.curve]
                axis.plot(steps, [point[1] for point in stage.curve], color=BLUE, linewidth=2, marker="o")
                low, high = ([point[side] for point in stage.curve] for side in (2, 3))
                axis.fill_between(steps, low, high, color=BLUE, alpha=0.18, linewidth=0)
            begin = end
        axis.set_ylim(0, 1.05)
        axis.margins(x=0.015)
        axis.yaxis.set_major_formatter(lambda value, _: as_percent(value))
        axis.set_xlabel("optimizer step of each stage")
        # Where a stage ends and the next begins, the end's number is shown.
        shown = dict(sorted(ticks, key=lambda tick: tick[1] != "0"))
        axis.set_xticks(list(shown), list(shown.values()))
        svg = io.BytesIO()
        figure.savefig(svg, format="svg", metadata=NO_METADATA)
    document = svg.getvalue().decode()
    return document[document.index("<svg") :]
