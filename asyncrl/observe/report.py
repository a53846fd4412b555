"""The report of a run: one HTML file that needs no other, and the curves as a PNG.

The template escapes everything the model wrote. The numbers are `Summary`'s; nothing is computed here.
"""

from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from markupsafe import Markup

from asyncrl.journal.reader import GroupFilter, find_journal
from asyncrl.journal.rows import GroupRow
from asyncrl.observe import curves
from asyncrl.observe.comparison import comparison_header, comparison_rows, comparison_title
from asyncrl.observe.formats import NOTHING, compact, duration, percent
from asyncrl.observe.metrics import Row
from asyncrl.observe.summary import JOURNAL_FILE, RECIPE_FILE, Summary, summarize
from asyncrl.observe.terminal import evaluation_rows

PART_COLORS = ("#0072b2", "#e69f00", "#56b4e9", "#009e73", "#c9ced6", "#cc79a7")
SAMPLE_GROUPS = 2
"""Shown of the first and of the last step."""


def write_report(
    run_folder: Path,
    tokens: Mapping[str, int],
    *,
    checkpoint: Path | None = None,
    commands: Mapping[str, str] | None = None,
) -> Summary:
    """Writes report.html and curves.png into the run folder; can be called again at any time.

    `tokens` are the counts "generated" and of each fate, `checkpoint` is the trained model's folder,
    `commands` maps what to do next to its command line.
    """
    summary = summarize(run_folder, tokens, checkpoint=checkpoint, commands=commands)
    curves.write_png(summary.metrics, summary.curves)
    summary.report.write_text(_page(summary), encoding="utf-8")
    return summary


def _page(summary: Summary) -> str:
    import jinja2

    static = resources.files("asyncrl.observe") / "static"
    template = (static / "report.html").read_text(encoding="utf-8")
    style = (static / "report.css").read_text(encoding="utf-8")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    recipe = (summary.run_folder / RECIPE_FILE).read_text(encoding="utf-8")
    fields = yaml.safe_load(recipe)
    return environment.from_string(template).render(
        style=Markup(style),
        curves=Markup(curves.as_svg(summary.metrics)),
        recipe=recipe,
        name=fields["name"],
        model=fields["model"]["path"],
        steps=len(summary.metrics.steps),
        training_time=duration(summary.training_seconds),
        tiles=list(_tiles(summary)),
        samples=_samples(summary),
        faults=summary.faults,
        commands=list(_commands(summary)),
        **_evaluations(summary),
        **_books(summary),
        **_times(summary),
    )


def _tiles(summary: Summary) -> Iterator[dict[str, str]]:
    """The headline numbers."""
    before, after = summary.metrics.evaluation("before"), summary.metrics.evaluation("after")
    if after is not None:
        low, high = after.get("greedy_low"), after.get("greedy_high")
        yield {
            "title": "held-out accuracy",
            "value": _change(percent, before, after, "greedy_accuracy"),
            "note": "" if low is None or high is None else f"95% interval {100 * low:.0f}-{percent(high)}",
        }
        yield {
            "title": "response length",
            "value": _change(lambda value: f"{value:.0f}", before, after, "response_tokens_mean"),
            "note": "tokens, held-out, greedy",
        }
    cut = [row["cut_share"] for row in summary.metrics.steps if row.get("cut_share") is not None]
    if cut:
        yield {
            "title": "cut at max_new_tokens",
            "value": f"{percent(cut[0])} → {percent(cut[-1])}",
            "note": "responses of the first and the last step",
        }
    trained = summary.conservation.tokens.get("trained", 0)
    generated = max(1, summary.conservation.generated_tokens())
    yield {
        "title": "tokens trained",
        "value": compact(trained),
        "note": f"{percent(trained / generated)} of those generated",
    }
    yield {
        "title": "idle in steady state",
        "value": f"{percent(summary.trainer_idle_share)} / {percent(summary.rollout_idle_share)}",
        "note": "trainer / rollout",
    }


def _change(text: Any, before: Row | None, after: Row, name: str) -> str:
    ends = [NOTHING if row is None or row.get(name) is None else text(row[name]) for row in (before, after)]
    return " → ".join(ends)


def _evaluations(summary: Summary) -> dict[str, Any]:
    before, after = summary.metrics.evaluation("before"), summary.metrics.evaluation("after")
    num_tasks = next((row["num_tasks"] for row in (after, before) if row is not None), 0)
    return {
        "evaluations": evaluation_rows(before, after),
        "num_tasks": num_tasks,
        "template": summary.template(),
        "benchmarks": [
            {
                "title": comparison_title(next(row for row in results if row is not None)),
                "header": comparison_header(("before", "after")),
                "rows": comparison_rows(results),
            }
            for results in summary.benchmarks()
        ],
    }


def _books(summary: Summary) -> dict[str, Any]:
    books = summary.conservation
    fates = [
        {
            "name": fate.name,
            "tokens": f"{fate.tokens:,}",
            "groups": f"{fate.groups:,}",
            "share": f"{100 * fate.share:.1f}%",
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


def _commands(summary: Summary) -> Iterator[tuple[str, str]]:
    if summary.checkpoint is not None:
        yield "checkpoint", str(summary.checkpoint)
    yield from summary.commands.items()


def _samples(summary: Summary) -> list[dict[str, Any]]:
    """One correct and one wrong trajectory, where there are, of some groups at both ends of the run."""
    journal = find_journal(summary.run_folder / JOURNAL_FILE)
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
