"""Reports as files: report.html with curves.png, report.json, report.md, responses.csv, and a picture to
share; each is replaced whole."""

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from asyncrl.observe.metrics.charts import (
    ACCURACY,
    BLUE,
    GREEN,
    LOSS,
    MUTED,
    ORANGE,
    PURPLE,
    REWARD,
    learns_rows,
)
from asyncrl.observe.metrics.sample_curves import TITLES, Compared, chosen
from asyncrl.observe.terminal import curves
from asyncrl.observe.terminal.curves import INK, NO_METADATA, STYLE, draw_panel
from asyncrl.observe.terminal.table import duration, exact_share
from asyncrl.readers.report.collect import collect
from asyncrl.readers.report.costs import responses_csv
from asyncrl.readers.report.page import remarks_of, render
from asyncrl.readers.report.schema import RunReport
from asyncrl.readers.report.several import texts_of_several
from asyncrl.readers.report.tables import as_markdown, compared_of, sampled_sets, tables_of
from asyncrl.run.checkpoints import EXPORT
from asyncrl.run.metrics_file import Metrics, Row, read_metrics
from asyncrl.system.files import write_whole
from asyncrl.system.places import CURVES, METRICS, REPORT
from asyncrl.system.words import as_percent

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


FORMATS = {"html": REPORT, "json": "report.json", "markdown": "report.md", "csv": "responses.csv"}
"""Format -> the name of its file."""
DEFAULT_FORMATS = ("html", "json")


def write_report(
    run_folder: Path,
    *,
    folder: Path | None = None,
    formats: Sequence[str] = DEFAULT_FORMATS,
    commands: Mapping[str, str] | None = None,
) -> RunReport:
    """Writes the report of a run into its folder, or into `folder`; can be called again at any time.

    `commands` maps what to do next to its command line. Raises InputError for files that are damaged, OSError
    for those that cannot be written.
    """
    metrics = read_metrics(run_folder / METRICS)
    report = collect(run_folder, metrics)
    texts: dict[str, Callable[[], str]] = {
        "json": lambda: report.model_dump_json(indent=1) + "\n",
        "markdown": lambda: as_markdown(report.run.name, remarks_of(report), tables_of(report)),
        "csv": lambda: responses_csv(report),
    }
    place = folder or run_folder
    place.mkdir(parents=True, exist_ok=True)
    if "html" in formats:
        picture = curves.draw_curves(metrics)
        samples = draw_samples([(name, compared_of(each)) for name, each in sampled_sets(report)])
        texts["html"] = lambda: render(report, picture.svg, samples, commands or {})
        (place / CURVES).write_bytes(picture.png)
    for name in formats:
        write_whole(place / FORMATS[name], texts[name]())
    return report


def write_several(folders: Sequence[Path], *, folder: Path, formats: Sequence[str]) -> list[Path]:
    """The files of one report of several runs, in `folder`. Raises InputError and OSError, as
    `write_report`."""
    texts = texts_of_several(folders, formats)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_whole(folder / FORMATS[name], text)
    return [folder / FORMATS[name] for name in texts]


def write_card(run_folder: Path, file: Path) -> None:
    """One picture of the run. Raises InputError and OSError, as `write_report`."""
    metrics = read_metrics(run_folder / METRICS)
    file.write_bytes(draw_card(collect(run_folder, metrics), metrics))


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
