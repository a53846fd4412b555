"""The tables of a report, as rows of words: what a paper prints. text.py and page.py say how they look."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from asyncrl.observe.metrics.formats import NOTHING, compact, duration, percent
from asyncrl.readers.report.schema import CombinedReport, Evaluation, RunReport, SeedMean, Share
from asyncrl.system.rounding import as_percent, fixed, signed

HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def tables_of(report: RunReport) -> list[Table]:
    """Results, benchmarks, cost and scale, distance from the policy; those that have a row."""
    found = [results(report), *_benchmarks(report), scale(report), _off_policy(report)]
    return [table for table in found if table.rows]


def results(report: RunReport) -> Table:
    heldout = report.heldout
    if heldout is None:
        return Table("Held-out tasks", ("",), (), "The run has no evaluation.")
    versions = [heldout.base, heldout.last, heldout.best]
    titles = ["base", "last", "best (chosen on these tasks)"]
    header = [
        title if version is None else f"{title}, step {version.step}"
        for title, version in zip(titles, versions, strict=True)
    ]
    template = f"template {heldout.template}" if heldout.template else "template not recorded"
    alike = "" if heldout.is_one_template else " THE EVALUATIONS WERE ASKED UNDER DIFFERENT TEMPLATES."
    tasks = next((version.num_tasks for version in versions if version is not None), 0)
    note = f"{tasks} tasks, {template}, 95% intervals over tasks (Wilson).{alike} {heldout.note}"
    return Table("Held-out tasks", ("", *header), tuple(_evaluation_rows(versions)), note)


def _evaluation_rows(versions: Sequence[Evaluation | None]) -> list[tuple[str, ...]]:
    k = next((version.k for version in versions if version is not None and version.k is not None), None)
    measures: list[tuple[str, Callable[[Evaluation], str]]] = [
        ("greedy accuracy", lambda each: share(each.greedy)),
        (f"avg@{k}", lambda each: share(each.avg_at_k)),
        (f"pass@{k}", lambda each: share(each.pass_at_k)),
        ("response tokens", lambda each: compact(each.response_tokens_mean)),
        ("cut off", lambda each: _percent(each.cut_share)),
        ("faults, not counted", lambda each: str(each.num_faults or NOTHING)),
    ]
    rows = [
        (title, *(NOTHING if version is None else cell(version) for version in versions))
        for title, cell in measures
    ]
    return [row for row in rows if any(cell != NOTHING for cell in row[1:])]


def _benchmarks(report: RunReport) -> list[Table]:
    found = []
    for benchmark in report.benchmarks:
        rows = _evaluation_rows([benchmark.before, benchmark.after])
        changes = {
            name: f"{signed(100 * change.mean, 1)} "
            f"[{signed(100 * change.low, 1)}, {signed(100 * change.high, 1)}]"
            for name, change in benchmark.changes.items()
        }
        found.append(
            Table(
                f"Benchmark {benchmark.name}",
                ("", "before", "after", "change"),
                tuple((*row, changes.get(_measure(row[0]), "")) for row in rows),
                f"Template {benchmark.template}. Changes in points, paired over tasks.",
            )
        )
    return found


def _measure(title: str) -> str:
    return title.partition(" ")[0].partition("@")[0]


def scale(report: RunReport) -> Table:
    """The run's cost and scale."""
    tokens, flops, time, run = report.tokens, report.flops, report.time, report.run
    rows = [
        ("steps", f"{run.steps:,} of {run.num_steps:,}, {run.state}"),
        ("tokens generated", f"{tokens.generated:,}"),
        ("tokens trained", f"{tokens.trained:,} ({percent(tokens.trained / max(1, tokens.generated))})"),
        ("model FLOPs generated", _power(flops.generated)),
        ("model FLOPs trained", _power(flops.trained)),
        ("wall time, all starts", duration(time.wall_seconds)),
        ("time of the steps that count", duration(time.step_seconds)),
        ("GPU hours", NOTHING if time.gpu_hours is None else f"{time.gpu_hours:.3g}"),
        ("CPU hours", NOTHING if time.cpu_hours is None else f"{time.cpu_hours:.3g}"),
        *((f"- {p.name}", _process(p.cpu_hours, p.gpu_hours, p.num_restarts)) for p in time.processes),
        ("energy", _energy(report)),
        ("cost", _cost(report)),
        ("starts, resumptions", f"{len(report.starts)}, {report.num_resumptions}"),
        ("idle, trainer / rollout", f"{percent(report.idle.trainer)} / {percent(report.idle.rollout)}"),
        ("verdicts that were faults", f"{sum(fault.num_verdicts for fault in report.faults):,}"),
        ("faults whose retry gave a verdict", f"{sum(fault.num_retried for fault in report.faults):,}"),
        ("response tokens, first to last step", _ends(report)),
    ]
    energy = []
    if report.energy is not None:
        energy = [f"Energy, {part.part}: {part.how}." for part in report.energy.parts]
        energy += [f"Not measured: {why}." for why in report.energy.lacking]
    note = " ".join([f"FLOPs: {flops.formula} Source: {flops.source}.", *energy])
    return Table("Cost and scale", ("", "value"), tuple(rows), note)


def _process(cpu_hours: float | None, gpu_hours: float, restarts: int) -> str:
    words = ["CPU not measured (another machine)" if cpu_hours is None else f"{cpu_hours:.3g} CPU h"]
    words += [f"{gpu_hours:.3g} GPU h"] if gpu_hours else []
    words += [f"{restarts} restarts"] if restarts else []
    return ", ".join(words)


def _energy(report: RunReport) -> str:
    if report.energy is None:
        return NOTHING
    value = f"{report.energy.joules / 3.6e6:.3g} kWh"
    return f"about {value} (estimate)" if report.energy.is_estimate else value


def _cost(report: RunReport) -> str:
    cost = report.cost
    if cost is None:
        return f"{NOTHING} (--price-per-hour)"
    return f"{cost.total:.4g} = {cost.hours:.4g} {cost.per} hours x {cost.price_per_hour:g}"


def _ends(report: RunReport) -> str:
    lengths, cut = report.response_tokens, report.cut_share
    tokens = f"{compact(lengths.first)} -> {compact(lengths.last)}"
    return f"{tokens}, cut off {_percent(cut.first)} -> {_percent(cut.last)}"


def _off_policy(report: RunReport) -> Table:
    rows = tuple(
        (name.replace("_", " "), *(f"{value:.3g}" for value in (d.mean, d.median, d.p90, d.p99, d.max)))
        for name, d in report.off_policy.items()
    )
    header = ("", "mean", "median", "90%", "99%", "max")
    note = "Over steps. Staleness in versions, KL in nats per token; mismatch: tokens of the current version."
    return Table("Staleness and mismatch", header, rows, note)


def combined_tables(report: CombinedReport) -> list[Table]:
    """A row per run, then a row per group of seeds."""
    return [_combined_results(report), _combined_scale(report)]


def _combined_results(report: CombinedReport) -> Table:
    rows = []
    for run in report.runs:
        heldout = run.heldout
        versions = [None] * 3 if heldout is None else [heldout.base, heldout.last, heldout.best]
        greedy = [NOTHING if version is None else share(version.greedy) for version in versions]
        samples = [NOTHING if version is None else share(version.avg_at_k) for version in versions[:2]]
        rows.append((run.run.name, str(run.seeds.recipe), run.run.state, *greedy, *samples))
    for group in report.groups:
        cells = [
            _mean(group.measures.get(name))
            for name in ("base greedy", "last greedy", "best greedy", "base avg_at_k", "last avg_at_k")
        ]
        rows.append((f"{group.name}: mean of seeds", str(len(group.seeds)), "", *cells))
    header = ("run", "seed", "state", "base", "last", "best*", "avg@k base", "avg@k last")
    note = (
        "Runs: 95% Wilson intervals over held-out tasks. Means: Student's t over runs that differ in their "
        "seed alone. * chosen on the held-out tasks themselves: optimistic."
    )
    return Table("Held-out tasks", header, tuple(rows), note)


def _combined_scale(report: CombinedReport) -> Table:
    rows = [
        (
            run.run.name,
            str(run.run.steps),
            compact(run.tokens.generated),
            compact(run.tokens.trained),
            _power(run.flops.generated),
            _power(run.flops.trained),
            duration(run.time.wall_seconds),
            NOTHING if run.time.gpu_hours is None else f"{run.time.gpu_hours:.3g}",
            NOTHING if run.time.cpu_hours is None else f"{run.time.cpu_hours:.3g}",
            _energy(run),
            NOTHING if run.cost is None else f"{run.cost.total:.4g}",
        )
        for run in report.runs
    ]
    header = (
        *("run", "steps", "tokens generated", "tokens trained", "FLOPs generated", "FLOPs trained"),
        *("wall time", "GPU h", "CPU h", "energy", "cost"),
    )
    return Table("Cost and scale", header, tuple(rows))


def share(found: Share | None) -> str:
    if found is None:
        return NOTHING
    return f"{as_percent(found.mean, 1)} [{fixed(100 * found.low, 1)}, {fixed(100 * found.high, 1)}]"


def _mean(found: SeedMean | None) -> str:
    if found is None:
        return NOTHING
    return f"{fixed(100 * found.mean, 1)} ± {fixed(50 * (found.high - found.low), 1)}%"


def _percent(value: float | None) -> str:
    return NOTHING if value is None else as_percent(value, 1)


def _power(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.3g}"
