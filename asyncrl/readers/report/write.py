"""Reports as files: report.html with curves.png, report.json, report.md, report.tex; each replaced whole."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from asyncrl.journal.reader import find_journal
from asyncrl.observe.metrics.metrics_file import read_metrics
from asyncrl.observe.metrics.summary import Summary, summarize
from asyncrl.observe.terminal import curves
from asyncrl.readers.report.collect import collect, tokens_of
from asyncrl.readers.report.costs import Prices
from asyncrl.readers.report.page import remarks_of, render, render_combined
from asyncrl.readers.report.schema import CombinedReport, RunReport
from asyncrl.readers.report.seeds import group_by_seed
from asyncrl.readers.report.tables import combined_tables, tables_of
from asyncrl.readers.report.text import as_latex, as_markdown
from asyncrl.system.run_files import CURVES, JOURNAL, METRICS, REPORT
from asyncrl.system.whole_file import write_whole

FORMATS = {"html": REPORT, "json": "report.json", "markdown": "report.md", "latex": "report.tex"}
"""Format -> the name of its file."""
DEFAULT_FORMATS = ("html", "json")


def write_report(
    run_folder: Path,
    *,
    folder: Path | None = None,
    formats: Sequence[str] = DEFAULT_FORMATS,
    prices: Prices | None = None,
    checkpoint: Path | None = None,
    commands: Mapping[str, str] | None = None,
) -> tuple[RunReport, Summary]:
    """Writes the report of a run into its folder, or into `folder`; can be called again at any time.

    `checkpoint` is the trained model's folder, `commands` maps what to do next to its command line. Raises
    InputError for files that are damaged, OSError for those that cannot be written.
    """
    report = collect(run_folder, prices)
    tokens = tokens_of(find_journal(run_folder / JOURNAL))
    summary = summarize(run_folder, tokens, checkpoint=checkpoint, commands=commands or {})
    place = folder or run_folder
    known = {"checkpoint": str(checkpoint)} if checkpoint is not None else {}
    texts: dict[str, Callable[[], str]] = {
        "json": lambda: report.model_dump_json(indent=1) + "\n",
        "markdown": lambda: as_markdown(report.run.name, remarks_of(report), tables_of(report)),
        "latex": lambda: as_latex(report.run.name, remarks_of(report), tables_of(report)),
    }
    if "html" in formats:
        picture = curves.draw_curves(summary.metrics)
        texts["html"] = lambda: render(report, summary, picture.svg, {**known, **(commands or {})})
        place.mkdir(parents=True, exist_ok=True)
        (place / CURVES).write_bytes(picture.png)
    _write(place, {FORMATS[name]: texts[name]() for name in formats})
    return report, summary


def write_combined(
    reports: Sequence[RunReport], folder: Path, *, formats: Sequence[str] = DEFAULT_FORMATS
) -> CombinedReport:
    """Writes one report of several runs. Raises OSError where a file cannot be written."""
    report = CombinedReport(runs=list(reports), groups=group_by_seed(reports))
    title = f"{len(reports)} runs"
    remarks = [f"{run.run.name}: {remark}" for run in reports for remark in remarks_of(run)]
    texts: dict[str, Callable[[], str]] = {
        "html": lambda: render_combined(
            report, [read_metrics(Path(run.run.folder) / METRICS) for run in reports]
        ),
        "json": lambda: report.model_dump_json(indent=1) + "\n",
        "markdown": lambda: as_markdown(title, remarks, combined_tables(report)),
        "latex": lambda: as_latex(title, remarks, combined_tables(report)),
    }
    _write(folder, {FORMATS[name]: texts[name]() for name in formats})
    return report


def _write(folder: Path, files: Mapping[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        write_whole(folder / name, text)
