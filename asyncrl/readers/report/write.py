"""Reports as files: report.html with curves.png, report.json, report.md, responses.csv, and a picture to
share; each is replaced whole. Pages are one file, with a frame, style and tables that all reports share.
"""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path, PurePath
from typing import Any

from markupsafe import Markup

from asyncrl.journal.kept_answers import MOST_TASKS
from asyncrl.observe.metrics.charts import BLUE, GREEN, MUTED, ORANGE, PURPLE
from asyncrl.observe.terminal.table import duration, exact_share
from asyncrl.readers.compare.recorded import open_runs
from asyncrl.readers.compare.run_comparison import compare, sentences_of
from asyncrl.readers.compare.run_comparison import tables_of as compared_tables
from asyncrl.readers.report.answers import TASKS_PER_CHANGE
from asyncrl.readers.report.collect import collect
from asyncrl.readers.report.costs import responses_csv
from asyncrl.readers.report.pictures import GRID, INK, draw_card, draw_curves, draw_runs, draw_samples
from asyncrl.readers.report.schema import Answers, RunReport
from asyncrl.readers.report.tables import as_markdown, compared_of, provenance, sampled_sets, tables_of
from asyncrl.recipe.yaml_text import write_yaml
from asyncrl.run.checkpoints import EXPORT
from asyncrl.run.metrics_file import Row, read_metrics
from asyncrl.system.files import write_whole
from asyncrl.system.places import CURVES, METRICS, REPORT

VARIABLES = {
    INK: "ink",
    MUTED: "muted",
    GRID: "line",
    "#ffffff": "paper",
    BLUE: "blue",
    ORANGE: "orange",
    GREEN: "green",
    PURPLE: "purple",
}
"""Colour of a drawing -> the variable of report.css that has it, light and dark."""


def render_page(template: str, **values: Any) -> str:
    """`template`: PACKAGE/FILE, such as report/report.html."""
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, loader=jinja2.FunctionLoader(_static)
    )
    style = Markup(_static("report/report.css"))
    return environment.get_template(template).render(style=style, **values)


def themed(svg: str) -> Markup:
    """The drawing in the page's colours, which follow the reader's choice of light or dark."""

    def in_page(color: re.Match[str]) -> str:
        name = VARIABLES.get(color[0])
        return color[0] if name is None else f"var(--{name})"

    return Markup(re.sub(r"#[0-9a-f]{6}\b", in_page, svg))


def _static(name: str) -> str:
    package, file = name.split("/")
    return (resources.files("asyncrl.readers") / package / "static" / file).read_text(encoding="utf-8")


def render(report: RunReport, svg: str, samples: str, commands: Mapping[str, str]) -> str:
    """`svg` has the curves, `samples` those over k or nothing; `commands` maps what to do next to its command
    line."""
    packages = {} if report.environment is None else report.environment.packages
    return render_page(
        "report/report.html",
        curves=themed(svg),
        samples=themed(samples),
        answers=answers_of(report),
        no_answers_note=no_answers_note(report),
        recipe=write_yaml(report.recipe),
        title=report.run.name,
        model=report.model.path,
        steps=report.run.steps,
        training_time=duration(report.time.step_seconds),
        remarks=remarks_of(report),
        tables=tables_of(report),
        commands=list(commands.items()),
        provenance=provenance(report),
        packages="\n".join(f"{name}=={version}" for name, version in packages.items()),
    )


def answers_of(report: RunReport) -> list[tuple[str, Answers, str]]:
    """Title, answers and their note: those of the run itself, then those of each evaluation set of
    `asyncrl eval`."""
    sets = [(f"{each.name}, by asyncrl eval", each.answers) for each in report.evaluations]
    return [
        (title, found, answers_note(found))
        for title, found in [("held-out, by the run", report.answers), *sets]
        if found is not None
    ]


def answers_note(found: Answers) -> str:
    """How many tasks changed, and the rule of those that are shown."""
    counts = ", ".join(f"{number:,} {change}" for change, number in found.counts.items())
    kind = "Most likely answers" if found.is_greedy else "First samples"
    of = f" of the first {MOST_TASKS} of {found.num_tasks:,}" if found.num_tasks > MOST_TASKS else ""
    return (
        f"{kind} to {sum(found.counts.values()):,} tasks{of}, at {found.before} and at {found.after}: "
        f"{counts}. Shown are the first {TASKS_PER_CHANGE} of each, in the order of the file: none was "
        "chosen by how it reads."
    )


def no_answers_note(report: RunReport) -> str:
    """Why there are none, and the command that makes some."""
    return (
        "Nothing kept answers of the base model and of a trained version to the same tasks. A run with "
        "held-out tasks does, and so does an evaluation of both: "
        f"asyncrl eval {shlex.quote(report.run.folder)} FILE --at base,last"
    )


def remarks_of(report: RunReport) -> list[str]:
    """Remarks that a reader needs before the numbers."""
    run = report.run
    done = f"{run.steps:,} of {run.num_steps:,} steps"
    found = {
        "finished": [],
        "running": [f"This run is NOT FINISHED: it is running, {done} so far."],
        "stopped": [f"This run is NOT FINISHED: it stopped after {done}."],
        "not begun": ["This run has not begun."],
    }[run.state]
    if any(start.differences for start in report.starts):
        found = [*found, "The environment changed between two starts of this run; see the starts below."]
    return found


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
        picture = draw_curves(metrics)
        samples = draw_samples([(name, compared_of(each)) for name, each in sampled_sets(report)])
        texts["html"] = lambda: render(report, picture.svg, samples, commands or {})
        (place / CURVES).write_bytes(picture.png)
    for name in formats:
        write_whole(place / FORMATS[name], texts[name]())
    return report


def write_several(folders: Sequence[Path], *, folder: Path, formats: Sequence[str]) -> list[Path]:
    """The files of one report of several runs, in `folder`: html and markdown, those in `formats`. Raises
    InputError and OSError, as `write_report`."""
    runs = open_runs(folders)
    comparison = compare(runs)
    title = " and ".join(run.label for run in runs) if len(runs) == 2 else f"{len(runs)} runs"
    recipe, results = compared_tables(comparison)
    tables = [replace(results, title="Results"), replace(recipe, title="Recipes")]
    remarks, method = comparison["remarks"], comparison["method"]
    sentences = [sentence for pair in comparison["pairs"] for sentence in sentences_of(pair)]
    texts: dict[str, Callable[[], str]] = {
        "html": lambda: render_page(
            "report/several.html",
            title=title,
            labels=[run.label for run in runs],
            remarks=remarks,
            curves=themed(draw_runs(runs)),
            sentences=sentences,
            method=method,
            tables=tables,
        ),
        "markdown": lambda: as_markdown(title, [*remarks, *sentences, method], tables),
    }
    files = {name: folder / FORMATS[name] for name in formats if name in texts}
    folder.mkdir(parents=True, exist_ok=True)
    for name, file in files.items():
        write_whole(file, texts[name]())
    return list(files.values())


_MOST_CHARACTERS = 60
"""Length of a name on the card."""


def write_card(run_folder: Path, file: Path) -> None:
    """One picture of the run. Raises InputError and OSError, as `write_report`."""
    metrics = read_metrics(run_folder / METRICS)
    report = collect(run_folder, metrics)
    facts = _short(" · ".join(_facts(report)), 2 * _MOST_CHARACTERS)
    file.write_bytes(draw_card(metrics, _short(report.run.name), result_of(report), facts))


def result_of(report: RunReport) -> str:
    """The held-out accuracy of the base model and of the last version, each with its 95% interval."""
    heldout = report.heldout
    if heldout is None or heldout.last is None or heldout.last.get("greedy_accuracy") is None:
        return "No held-out evaluation of a trained version."
    before = "" if heldout.base is None else f"{_share(heldout.base)} -> "
    return f"Held-out accuracy {before}{_share(heldout.last)}, {heldout.last['num_tasks']:,} tasks"


def _share(row: Row) -> str:
    return exact_share(row.get("greedy_accuracy"), row.get("greedy_low"), row.get("greedy_high"))


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
