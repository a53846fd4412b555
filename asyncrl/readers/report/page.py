"""Pages that are one file: the frame, style and tables that reports share, and the report of a run."""

import re
import shlex
from collections.abc import Mapping
from importlib import resources
from typing import Any

from markupsafe import Markup

from asyncrl.journal.kept_answers import MOST_TASKS
from asyncrl.observe.metrics.charts import BLUE, GREEN, MUTED, ORANGE, PURPLE
from asyncrl.observe.terminal.curves import GRID, INK
from asyncrl.observe.terminal.table import duration
from asyncrl.readers.report.answers import TASKS_PER_CHANGE
from asyncrl.readers.report.schema import Answers, RunReport
from asyncrl.readers.report.tables import provenance, tables_of
from asyncrl.recipe.yaml_text import write_yaml

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
    return Markup(re.sub(r"#[0-9a-f]{6}\b", lambda found: _variable(found[0]), svg))


def _variable(color: str) -> str:
    name = VARIABLES.get(color)
    return color if name is None else f"var(--{name})"


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
