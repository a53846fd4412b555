"""The page of a report: one HTML file that needs no other. The template escapes everything the model wrote.

The numbers are those of report.json and of the run's summary; nothing is computed here.
"""

from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import Any

from markupsafe import Markup

from asyncrl.journal.reader import GroupFilter, find_journal
from asyncrl.journal.rows import GroupRow
from asyncrl.observe.metrics.formats import NOTHING, compact, duration, percent
from asyncrl.observe.metrics.metrics_file import Metrics
from asyncrl.observe.metrics.summary import Summary
from asyncrl.observe.terminal import curves
from asyncrl.readers.report.schema import CombinedReport, RunReport
from asyncrl.readers.report.tables import combined_tables, tables_of
from asyncrl.system.rounding import as_percent, fixed
from asyncrl.system.run_files import JOURNAL, RECIPE

PART_COLORS = ("#0072b2", "#e69f00", "#56b4e9", "#009e73", "#c9ced6", "#cc79a7")
SAMPLE_GROUPS = 2
"""Shown of the first and of the last step."""
NAMES = ("asyncrl", "commit", "has_local_changes", "python", "platform", "cpu", "num_cores", "memory_gib")
"""Fields of the environment that are shown in a row each."""


def render(report: RunReport, summary: Summary, svg: str, commands: Mapping[str, str]) -> str:
    """`svg` has the curves; `commands` maps what to do next to its command line."""
    return _template(
        "report.html",
        curves=Markup(svg),
        recipe=(summary.run_folder / RECIPE).read_text(encoding="utf-8"),
        title=report.run.name,
        model=report.model.path,
        steps=len(summary.metrics.steps),
        training_time=duration(summary.training_seconds),
        remarks=remarks_of(report),
        tables=tables_of(report),
        tiles=list(_tiles(report)),
        samples=_samples(summary),
        faults=summary.faults,
        commands=list(commands.items()),
        lock=list(_lock(report)),
        packages=_packages(report),
        **_books(summary),
        **_times(summary),
    )


def render_combined(report: CombinedReport, metrics: Sequence[Metrics]) -> str:
    """`metrics` of each run, in order."""
    names = [run.run.name for run in report.runs]
    return _template(
        "combined.html",
        title=f"{len(names)} runs",
        remarks=[f"{run.run.name}: {remark}" for run in report.runs for remark in remarks_of(run)],
        tables=combined_tables(report),
        curves=Markup(curves.runs_as_svg(list(zip(names, metrics, strict=True)))),
        folders=[(run.run.name, run.run.folder) for run in report.runs],
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


def _template(file: str, /, **values: Any) -> str:
    import jinja2

    static = resources.files("asyncrl.readers.report") / "static"
    loader = jinja2.FunctionLoader(lambda name: (static / name).read_text(encoding="utf-8"))
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    style = Markup((static / "report.css").read_text(encoding="utf-8"))
    return environment.get_template(file).render(style=style, **values)


def _tiles(report: RunReport) -> Iterator[dict[str, str]]:
    """The headline numbers."""
    heldout = report.heldout
    if heldout is not None and heldout.last is not None:
        last, base = heldout.last, heldout.base
        before = None if base is None or base.greedy is None else base.greedy.mean
        bounds = (
            ""
            if last.greedy is None
            else f"95% interval {fixed(100 * last.greedy.low)}-{percent(last.greedy.high)}"
        )
        after = None if last.greedy is None else last.greedy.mean
        yield {
            "title": "held-out accuracy",
            "value": f"{percent(before)} → {percent(after)}",
            "note": f"{bounds}, step {last.step}",
        }
        lengths = [None if each is None else each.response_tokens_mean for each in (base, last)]
        yield {
            "title": "response length",
            "value": " → ".join(NOTHING if length is None else f"{length:.0f}" for length in lengths),
            "note": "tokens, held-out, greedy",
        }
    if report.cut_share.first is not None:
        yield {
            "title": "cut at max_new_tokens",
            "value": f"{percent(report.cut_share.first)} → {percent(report.cut_share.last)}",
            "note": "responses of the first and the last step",
        }
    yield {
        "title": "tokens trained",
        "value": compact(report.tokens.trained),
        "note": f"{percent(report.tokens.trained / max(1, report.tokens.generated))} of those generated",
    }
    yield {
        "title": "idle in steady state",
        "value": f"{percent(report.idle.trainer)} / {percent(report.idle.rollout)}",
        "note": "trainer / rollout",
    }


def _lock(report: RunReport) -> Iterator[tuple[str, str]]:
    yield "seed", str(report.seeds.recipe)
    yield "seeds of the servers", ", ".join(map(str, report.seeds.servers)) or NOTHING
    yield "model", report.model.path
    yield "model commit", report.model.commit or NOTHING
    yield "model digest", report.model.digest or NOTHING
    for name, digest in {**report.data, **report.code}.items():
        yield f"digest of {name}", digest
    for index, start in enumerate(report.starts, start=1):
        said = f"from step {start.version}, {duration(start.wall_seconds)}"
        yield f"start {index}", "; ".join([said, *start.differences])
    if report.environment is not None:
        fields = report.environment.model_dump()
        yield from ((name.replace("_", " "), str(fields[name])) for name in NAMES)
        yield "GPUs", ", ".join(report.environment.gpus) or "none"


def _packages(report: RunReport) -> str:
    packages = {} if report.environment is None else report.environment.packages
    return "\n".join(f"{name}=={version}" for name, version in packages.items())


def _books(summary: Summary) -> dict[str, Any]:
    books = summary.conservation
    fates = [
        {
            "name": fate.name,
            "tokens": f"{fate.tokens:,}",
            "groups": f"{fate.groups:,}",
            "share": as_percent(fate.share, 1),
        }
        for fate in books.fates()
    ]
    return {
        "generated_tokens": f"{books.generated_tokens():,}",
        "generated_groups": f"{books.generated_groups():,}",
        "fates": fates,
        "missing": books.missing_tokens(),
    }


def _times(summary: Summary) -> dict[str, Any]:
    times = [
        {"name": name, "width": round(100 * share, 2), "text": percent(share), "color": color}
        for (name, share), color in zip(summary.time_shares.items(), PART_COLORS, strict=False)
        if share > 0
    ]
    return {
        "times": times,
        "trainer_idle": percent(summary.trainer_idle_share),
        "rollout_idle": percent(summary.rollout_idle_share),
    }


def _samples(summary: Summary) -> list[dict[str, Any]]:
    """One correct and one wrong trajectory, where there are, of some groups at both ends of the run."""
    journal = find_journal(summary.run_folder / JOURNAL)
    if journal is None:
        return []
    samples: list[dict[str, Any]] = []
    for step in dict.fromkeys(journal.step_range() or ()):
        for row in journal.groups(GroupFilter(step=step, limit=SAMPLE_GROUPS)):
            group = journal.group(row["group_id"])
            assert group is not None
            samples += _of_each_outcome(group)
    return samples


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
