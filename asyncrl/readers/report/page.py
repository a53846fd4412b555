"""The page of a report: one HTML file that needs no other. The template escapes what a user or a model wrote.

The numbers are those of report.json; nothing is computed here.
"""

from collections.abc import Mapping
from importlib import resources

from markupsafe import Markup

from asyncrl.observe.metrics.formats import duration
from asyncrl.readers.report.schema import RunReport
from asyncrl.readers.report.tables import provenance, tables_of
from asyncrl.recipe.yaml_text import write_yaml


def render(report: RunReport, svg: str, samples: str, commands: Mapping[str, str]) -> str:
    """`svg` has the curves, `samples` those over k or nothing; `commands` maps what to do next to its command
    line."""
    import jinja2

    static = resources.files("asyncrl.readers.report") / "static"
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    packages = {} if report.environment is None else report.environment.packages
    return environment.from_string((static / "report.html").read_text(encoding="utf-8")).render(
        style=Markup((static / "report.css").read_text(encoding="utf-8")),
        curves=Markup(svg),
        samples=Markup(samples),
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
