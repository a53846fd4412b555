"""One picture of a run for a post or a chat: name, a line of result, two curves; 1200 x 630 pixels."""

import io
from collections.abc import Iterator
from pathlib import PurePath

from asyncrl.observe.metrics.charts import ACCURACY, LOSS, MUTED, REWARD, learns_rows
from asyncrl.observe.metrics.formats import duration, exact_share
from asyncrl.observe.terminal.curves import INK, STYLE, draw_panel
from asyncrl.readers.report.page import remarks_of
from asyncrl.readers.report.schema import RunReport
from asyncrl.run.checkpoints import EXPORT
from asyncrl.run.metrics_file import Metrics, Row

WIDTH, HEIGHT = 1200, 630
"""Pixels, as pages that show a link's picture expect it."""
_DPI = 100
_MOST_CHARACTERS = 60
"""Length of a name on the card."""
_LARGE = {"font.size": 14, "axes.titlesize": 16, "legend.fontsize": 13, "axes.titlepad": 32}


def draw_card(report: RunReport, metrics: Metrics) -> bytes:
    """A PNG; takes a second of CPU."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = (LOSS if learns_rows(metrics) else REWARD, ACCURACY)
    with matplotlib.rc_context({**STYLE, **_LARGE}):
        figure = Figure(figsize=(WIDTH / _DPI, HEIGHT / _DPI), dpi=_DPI, facecolor="white")
        FigureCanvasAgg(figure)
        axes = figure.subplots(
            1, 2, gridspec_kw={"left": 0.065, "right": 0.97, "top": 0.66, "bottom": 0.125, "wspace": 0.18}
        )
        for axis, panel in zip(axes, panels, strict=True):
            draw_panel(axis, panel, metrics)
            axis.set_xlabel("optimizer step")
            axis.xaxis.get_major_locator().set_params(integer=True)
        words = ((0.915, _short(report.run.name), 26, INK), (0.845, result_of(report), 16, INK))
        for height, text, size, color in (*words, (0.79, _short_facts(report), 13, MUTED)):
            # What a user named is no formula.
            figure.text(0.03, height, text, fontsize=size, color=color, parse_math=False)
        figure.text(0.97, 0.915, "asyncrl", fontsize=16, color=MUTED, ha="right")
        png = io.BytesIO()
        figure.savefig(png, format="png")
    return png.getvalue()


def result_of(report: RunReport) -> str:
    """The held-out accuracy of the base model and of the last version, each with its 95% interval."""
    heldout = report.heldout
    if heldout is None or heldout.last is None or heldout.last.get("greedy_accuracy") is None:
        return "No held-out evaluation of a trained version."
    before = "" if heldout.base is None else f"{_share(heldout.base)} -> "
    return f"Held-out accuracy {before}{_share(heldout.last)}, {heldout.last['num_tasks']:,} tasks"


def _share(row: Row) -> str:
    return exact_share(row.get("greedy_accuracy"), row.get("greedy_low"), row.get("greedy_high"))


def _short_facts(report: RunReport) -> str:
    return _short(" · ".join(_facts(report)), 2 * _MOST_CHARACTERS)


def _facts(report: RunReport) -> Iterator[str]:
    yield f"{report.run.steps:,} steps in {duration(report.time.step_seconds)}"
    model = PurePath(report.model.path).name
    if model != EXPORT:
        yield model
    yield "95% intervals over tasks"
    yield from remarks_of(report)


def _short(text: str, most: int = _MOST_CHARACTERS) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 3]}..."
