"""Reports as files: report.html with curves.png, report.json, report.md, responses.csv, and a picture to
share; each is replaced whole."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from asyncrl.observe.terminal import curves
from asyncrl.observe.terminal.sample_pictures import draw_samples
from asyncrl.readers.report.card import draw_card
from asyncrl.readers.report.collect import collect
from asyncrl.readers.report.page import remarks_of, render
from asyncrl.readers.report.responses import responses_csv
from asyncrl.readers.report.schema import RunReport
from asyncrl.readers.report.several import texts_of_several
from asyncrl.readers.report.tables import as_markdown, compared_of, sampled_sets, tables_of
from asyncrl.run.metrics_file import read_metrics
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
