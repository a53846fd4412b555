"""Reports as files: report.html with curves.png, report.json, report.md, responses.csv, and a picture to
share; each is replaced whole."""

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath

from asyncrl.observe.metrics.formats import duration, exact_share
from asyncrl.observe.metrics.metrics_file import Metrics, Row, read_metrics
from asyncrl.observe.terminal import curves
from asyncrl.observe.terminal.curves import (
    ACCURACY,
    INK,
    MUTED,
    OF_ROWS,
    PANELS,
    REWARD,
    STYLE,
    draw_panel,
    panels_of,
)
from asyncrl.observe.terminal.sample_pictures import draw_samples
from asyncrl.readers.report.collect import collect
from asyncrl.readers.report.page import remarks_of, render
from asyncrl.readers.report.responses import responses_csv
from asyncrl.readers.report.schema import RunReport
from asyncrl.readers.report.several import texts_of_several
from asyncrl.readers.report.tables import as_markdown, compared_of, sampled_sets, tables_of
from asyncrl.run.checkpoints import EXPORT
from asyncrl.system.run_files import CURVES, METRICS, REPORT
from asyncrl.system.whole_file import write_whole

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

    panels = (REWARD, ACCURACY) if panels_of(metrics) == PANELS else (OF_ROWS[0], ACCURACY)
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
