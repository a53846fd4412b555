"""The page of a report: one HTML file that needs no other. The template escapes everything the model wrote.

The numbers are those of report.json; nothing is computed here.
"""

from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any

from markupsafe import Markup

from asyncrl.journal.reader import GroupFilter, JournalReader
from asyncrl.journal.rows import GroupRow
from asyncrl.observe.metrics.formats import duration
from asyncrl.readers.report.schema import RunReport
from asyncrl.readers.report.tables import provenance, tables_of
from asyncrl.recipe.yaml_text import write_yaml

SAMPLE_GROUPS = 2
"""Shown of the first and of the last step."""


def render(report: RunReport, journal: JournalReader | None, svg: str, commands: Mapping[str, str]) -> str:
    """`svg` has the curves; `commands` maps what to do next to its command line."""
    import jinja2

    static = resources.files("asyncrl.readers.report") / "static"
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    packages = {} if report.environment is None else report.environment.packages
    return environment.from_string((static / "report.html").read_text(encoding="utf-8")).render(
        style=Markup((static / "report.css").read_text(encoding="utf-8")),
        curves=Markup(svg),
        recipe=write_yaml(report.recipe),
        title=report.run.name,
        model=report.model.path,
        steps=report.run.steps,
        training_time=duration(report.time.step_seconds),
        remarks=remarks_of(report),
        tables=tables_of(report),
        samples=[] if journal is None else list(_samples(journal)),
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


def _samples(journal: JournalReader) -> Iterator[dict[str, Any]]:
    """One correct and one wrong trajectory, where there are, of some groups at both ends of the run."""
    for step in dict.fromkeys(journal.step_range() or ()):
        for row in journal.groups(GroupFilter(step=step, limit=SAMPLE_GROUPS)):
            group = journal.group(row["group_id"])
            assert group is not None
            yield from _of_each_outcome(group)


def _of_each_outcome(group: GroupRow) -> Iterator[dict[str, Any]]:
    for outcome in ("correct", "wrong"):
        found = next((t for t in group["trajectories"] if t["outcome"] == outcome and t["text"]), None)
        if found is not None:
            versions = [segment["version"] for segment in found["segments"]]
            yield {
                "step": group["step"],
                "prompt": group["prompt"],
                "outcome": outcome,
                "text": found["text"],
                "detail": found["detail"] or "",
                "num_tokens": sum(len(segment["tokens"]) for segment in found["segments"]),
                "versions": _version_range(versions),
            }


def _version_range(versions: list[int]) -> str:
    if not versions:
        return "no version"
    low, high = min(versions), max(versions)
    return f"version {low}" if low == high else f"versions {low}-{high}"
