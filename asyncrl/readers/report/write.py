"""Reports as files: report.html with curves.png, report.json, report.md, responses.csv, and a picture to
share; each is replaced whole."""

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from asyncrl.observe.metrics.charts import BLUE, GREEN, ORANGE, PURPLE
from asyncrl.observe.metrics.sample_curves import TITLES, Compared, chosen
from asyncrl.observe.terminal import curves
from asyncrl.observe.terminal.curves import NO_METADATA, STYLE
from asyncrl.readers.report.card import draw_card
from asyncrl.readers.report.collect import collect
from asyncrl.readers.report.page import remarks_of, render
from asyncrl.readers.report.responses import responses_csv
from asyncrl.readers.report.schema import RunReport
from asyncrl.readers.report.several import texts_of_several
from asyncrl.readers.report.tables import as_markdown, compared_of, sampled_sets, tables_of
from asyncrl.run.metrics_file import read_metrics
from asyncrl.system.rounding import as_percent
from asyncrl.system.run_files import CURVES, METRICS, REPORT
from asyncrl.system.whole_file import write_whole

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
