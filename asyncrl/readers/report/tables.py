"""The tables of a report, as rows of words: on the page, in Markdown and at the end of a run."""

from collections.abc import Sequence
from typing import cast

from asyncrl.observe.metrics.sample_curves import Compared
from asyncrl.observe.terminal.model_differences import (
    comparison_header,
    comparison_rows,
    comparison_table,
    comparison_title,
    curve_tables,
)
from asyncrl.observe.terminal.table import NOTHING, Table, compact, duration, percent
from asyncrl.readers.report.costs import responses_table
from asyncrl.readers.report.schema import Evaluated, OverK, RunReport
from asyncrl.run.metrics_file import Row
from asyncrl.system.words import as_percent

OPTIMISTIC = (
    "Last: the newest version that was evaluated. Best: the highest greedy accuracy on these very held-out "
    "tasks, of {n} trained versions that were evaluated. The highest of several noisy values is optimistic, "
    "and its interval does not know of the choice: report the last version, or measure the best one on other "
    "tasks (asyncrl eval RUN --at best)."
)
FLOPS = (
    "FLOPs are the model's: 2 N per token forward, 6 N to train, and attention's scores (Chowdhery et al. "
    "2022, PaLM, appendix B; Kaplan et al. 2020); norms, evaluations and what is computed again do not count."
)
NAMES = ("asyncrl", "commit", "has_local_changes", "python", "platform", "cpu", "num_cores", "memory_gib")
"""Fields of the environment that are shown in a row each."""


def tables_of(report: RunReport) -> list[Table]:
    """Those that have a row."""
    own = [] if report.samples is None else _over_k(*sampled_sets(report)[0])
    found = [
        *learned(report),
        *own,
        conservation(report),
        faults(report),
        scale(report),
        responses_table(report),
    ]
    found.append(_off_policy(report))
    return [table for table in found if table.rows]


def learned(report: RunReport) -> list[Table]:
    """The held-out evaluations, the benchmarks, and what `asyncrl eval` measured."""
    tables = [_heldout(report)]
    for each in report.benchmarks:
        tables.append(comparison_table(("before training", "after"), (each.before, each.after)))
        tables.append(_during(each.name, each.during))
    for evaluated in report.evaluations:
        tables += _evaluated(evaluated)
    return tables


def sampled_sets(report: RunReport) -> list[tuple[str, OverK]]:
    """Evaluation sets with curves over k, by their titles."""
    own = [] if report.samples is None else [("held-out, by the run", report.samples)]
    return [*own, *((each.name, each) for each in report.evaluations if each.curves)]


def compared_of(evaluated: OverK) -> Compared:
    """The curves as they were computed."""
    return cast(
        Compared,
        {
            "models": evaluated.sampled,
            "curves": evaluated.curves,
            "contrasts": evaluated.contrasts,
            "sentences": evaluated.sentences,
        },
    )


def _evaluated(evaluated: Evaluated) -> list[Table]:
    # Differences are paired over tasks, whose scores stay in the run folder.
    header = comparison_header(evaluated.models, has_differences=False)
    rows = comparison_rows(evaluated.results, has_differences=False)
    title = comparison_title(evaluated.results[0])
    tables = [Table(title, header, rows, "Measured by asyncrl eval.")]
    return [*tables, *(_over_k(evaluated.name, evaluated) if evaluated.curves else ())]


def _over_k(name: str, found: OverK) -> list[Table]:
    passed, *others = curve_tables(name, compared_of(found))
    note = " ".join([*([passed.note] if passed.note else []), *found.sentences])
    return [Table(passed.title, passed.header, passed.rows, note), *others]


def _during(name: str, rows: Sequence[Row]) -> Table:
    """A set that was measured during training, too."""
    columns = {"greedy": "greedy_accuracy", "avg@k": "avg_at_k", "pass@k": "pass_at_k"}
    known = {title: name for title, name in columns.items() if any(row.get(name) is not None for row in rows)}
    shares = [[as_percent(row[name], 1) for name in known.values()] for row in rows]
    lines = [(str(row["step"]), *words) for row, words in zip(rows, shares, strict=True)]
    return Table(f"{name} during training", ("step", *known), lines)


def _heldout(report: RunReport) -> Table:
    heldout = report.heldout
    if heldout is None:
        return Table("Held-out tasks", ("",), ())
    versions = [heldout.base, heldout.last, heldout.best]
    titles = ["base", "last", "best (chosen on these tasks)"]
    titles = [
        title if version is None else f"{title}, step {version['step']}"
        for title, version in zip(titles, versions, strict=True)
    ]
    template = f"template {heldout.template}" if heldout.template else "template not recorded"
    alike = "" if heldout.is_one_template else " THE EVALUATIONS WERE ASKED UNDER DIFFERENT TEMPLATES."
    tasks = next((version["num_tasks"] for version in versions if version is not None), 0)
    note = f"{tasks} tasks, {template}, 95% intervals over tasks (Wilson).{alike}"
    return Table(
        "Held-out tasks",
        comparison_header(titles, has_differences=False),
        comparison_rows(versions, has_differences=False),
        f"{note} {OPTIMISTIC.format(n=heldout.num_candidates)}",
    )


def conservation(report: RunReport) -> Table:
    """The fate of every generated token."""
    tokens = report.tokens
    rows = [("generated", f"{tokens.generated:,}", f"{tokens.generated_groups:,}", "")]
    for index, fate in enumerate(tokens.fates):
        name = f"{'+' if index else '='} {fate.name}"
        rows.append((name, f"{fate.tokens:,}", f"{fate.groups:,}", as_percent(fate.share, 1)))
    note = "Every generated token is accounted for."
    if tokens.unaccounted:
        rows.append(("! unaccounted", f"{tokens.unaccounted:,}", "", ""))
        note = "The books do not balance: this is a defect."
    return Table("Conservation", ("", "tokens", "groups", "share"), rows, note)


def faults(report: RunReport) -> Table:
    """Faults by cause, the most frequent first."""
    rows = [
        (fault.cause, f"{fault.num_verdicts:,}", f"{fault.num_retried:,}", fault.task_id)
        for fault in report.faults
    ]
    note = (
        "A fault is no wrong answer: its trajectory leaves the group before the baseline, unless a retry "
        "gives a verdict."
    )
    return Table("Faults by cause", ("cause", "verdicts", "retried", "first on"), rows, note)


def scale(report: RunReport) -> Table:
    """The run's cost and scale."""
    tokens, flops, time, run = report.tokens, report.flops, report.time, report.run
    shares = ", ".join(f"{words} {percent(share)}" for words, share in time.step_shares.items() if share)
    rows = [
        ("steps", f"{run.steps:,} of {run.num_steps:,}, {run.state}"),
        ("tokens generated", f"{tokens.generated:,}"),
        ("tokens trained", f"{tokens.trained:,} ({percent(tokens.trained / max(1, tokens.generated))})"),
        ("model FLOPs generated", _number(flops.generated)),
        ("model FLOPs trained", _number(flops.trained)),
        ("wall time, all starts", duration(time.wall_seconds)),
        ("time of the steps that count", duration(time.step_seconds)),
        ("the trainer's time", shares or NOTHING),
        (
            "idle in steady state",
            f"trainer {percent(time.trainer_idle_share)}, rollout {percent(time.rollout_idle_share)}",
        ),
        ("GPU hours", _number(time.gpu_hours)),
        ("CPU hours", _number(time.cpu_hours)),
        *((f"- {p.name}", _process(p.cpu_hours, p.gpu_hours, p.num_restarts)) for p in time.processes),
        ("starts", f"{len(report.starts)}"),
        ("response tokens, first to last step", _ends(report)),
    ]
    return Table("Cost and scale", ("", "value"), rows, FLOPS)


def _process(cpu_hours: float | None, gpu_hours: float, restarts: int) -> str:
    words = ["CPU not measured (another machine)" if cpu_hours is None else f"{cpu_hours:.3g} CPU h"]
    words += [f"{gpu_hours:.3g} GPU h"] if gpu_hours else []
    words += [f"{restarts} restarts"] if restarts else []
    return ", ".join(words)


def _ends(report: RunReport) -> str:
    lengths, cut = report.response_tokens, report.cut_share
    tokens = f"{compact(lengths.first)} -> {compact(lengths.last)}"
    return f"{tokens}, cut off {_percent(cut.first)} -> {_percent(cut.last)}"


def _off_policy(report: RunReport) -> Table:
    rows = [
        (name.replace("_", " "), *(f"{value:.3g}" for value in (d.mean, d.median, d.p90, d.p99, d.max)))
        for name, d in report.off_policy.items()
    ]
    header = ("", "mean", "median", "90%", "99%", "max")
    note = "Over steps. Staleness in versions, KL in nats per token; mismatch: tokens of the current version."
    return Table("Staleness and mismatch", header, rows, note)


def provenance(report: RunReport) -> Table:
    """Seed, digests, starts and environment: what the run was made of."""
    model = report.model
    rows = [
        ("seed", f"{report.recipe.get('seed')}"),
        ("model", model.path),
        ("model commit", model.commit or NOTHING),
        ("model digest", model.digest or NOTHING),
        *((f"digest of {name}", digest) for name, digest in {**report.data, **report.code}.items()),
    ]
    for index, start in enumerate(report.starts, start=1):
        said = f"from step {start.version}, {duration(start.wall_seconds)}"
        rows.append((f"start {index}", "; ".join([said, *start.differences])))
    if report.environment is not None:
        fields = report.environment.model_dump()
        rows += [(name.replace("_", " "), str(fields[name])) for name in NAMES]
        rows.append(("GPUs", ", ".join(report.environment.gpus) or "none"))
    return Table("Starts, seed, digests, environment", ("", ""), rows)


def as_markdown(title: str, remarks: Sequence[str], tables: Sequence[Table]) -> str:
    parts = [f"# {_line(title)}", *(_line(remark) for remark in remarks)]
    for table in tables:
        rows = [table.header, ("---", *("---:" for _ in table.header[1:])), *table.rows]
        lines = ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows]
        parts += [f"## {_line(table.title)}", "\n".join(lines), *([_line(table.note)] if table.note else [])]
    return "\n\n".join(parts) + "\n"


def _line(text: str) -> str:
    return " ".join(text.split())


def _cell(text: str) -> str:
    return _line(text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def _percent(value: float | None) -> str:
    return NOTHING if value is None else as_percent(value, 1)


def _number(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.3g}"
