"""The summary of a run: evaluations before and after, conservation, where the time went.

Read from metrics.jsonl and the journal, so it can be computed again at any time. Does not draw.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from asyncrl.journal.conservation import Conservation
from asyncrl.journal.reader import find_journal
from asyncrl.observe.metrics.fault_causes import FaultCause, group_faults
from asyncrl.observe.metrics.metrics_file import Metrics, Row, read_metrics
from asyncrl.system.run_files import CURVES, JOURNAL, METRICS, REPORT

TIMED_PARTS = {
    "train_seconds": "training",
    "wait_seconds": "waiting for rollouts",
    "publish_seconds": "publishing weights",
    "checkpoint_seconds": "saving checkpoints",
}
"""Parts of a trainer step in metrics.jsonl, with their display names."""
DRAIN = "drain_seconds"
"""A part of the step in runs with rollout.interrupt drain."""


@dataclass(frozen=True, slots=True)
class Summary:
    run_folder: Path
    metrics: Metrics
    conservation: Conservation
    time_shares: dict[str, float]
    """Part of the trainer's steps -> share of their time; sums to 1 when there is a step."""
    trainer_idle_share: float | None
    """Mean over the steady state; None if no step measured it."""
    rollout_idle_share: float | None
    training_seconds: float
    """Sum over steps, without start-up and the evaluations before and after."""
    checkpoint: Path | None
    faults: list[FaultCause] = field(default_factory=list)
    """Faults by cause, most frequent first."""
    commands: Mapping[str, str] = field(default_factory=dict)
    """Next task of the user -> the command line."""

    def template(self) -> str | None:
        """Template around the held-out questions, before and after training; None if nothing says."""
        rows = [row for row in self.metrics.evaluations if row.get("template")]
        return rows[-1]["template"] if rows else None

    def benchmarks(self) -> list[tuple[Row | None, Row | None]]:
        """Each benchmark that was measured: its rows before and after training."""
        found: dict[str, dict[str, Row]] = {}
        for row in self.metrics.benchmarks:
            found.setdefault(row["benchmark"], {})[row["when"]] = row
        return [(rows.get("before"), rows.get("after")) for rows in found.values()]

    @property
    def report(self) -> Path:
        return self.run_folder / REPORT

    @property
    def curves(self) -> Path:
        return self.run_folder / CURVES


def summarize(
    run_folder: Path,
    tokens: Mapping[str, int],
    *,
    checkpoint: Path | None = None,
    commands: Mapping[str, str] | None = None,
) -> Summary:
    """`tokens` accounts for what was generated, as `Conservation.tokens`; groups are the journal's."""
    metrics = read_metrics(run_folder / METRICS)
    journal = find_journal(run_folder / JOURNAL)
    # The first tenth fills the queue and warms caches up: idle shares are of the steady state.
    steady = metrics.steps[len(metrics.steps) // 10 :]
    return Summary(
        run_folder=run_folder,
        metrics=metrics,
        conservation=Conservation(tokens, {} if journal is None else journal.fates()),
        time_shares=_time_shares(metrics.steps),
        trainer_idle_share=_weighted_mean(steady, "trainer_idle_share"),
        rollout_idle_share=_weighted_mean(steady, "rollout_idle_share"),
        training_seconds=sum(row.get("step_seconds") or 0.0 for row in metrics.steps),
        checkpoint=checkpoint,
        faults=[] if journal is None else group_faults(journal.faults(), journal.retried_faults()),
        commands=commands or {},
    )


def _time_shares(steps: list[Row]) -> dict[str, float]:
    whole = sum(row.get("step_seconds") or 0.0 for row in steps)
    if not whole:
        return {}
    parts = [_parts(row) for row in steps]
    shares = {words: sum(part[name] for part in parts) / whole for name, words in TIMED_PARTS.items()}
    drained = sum(part[DRAIN] for part in parts) / whole
    # Parts are measured one by one and the step as a whole: show what lies between, do not spread it.
    rest = max(0.0, 1.0 - sum(shares.values()) - drained)
    return {**shares, "the rest": rest, **({"draining servers": drained} if drained else {})}


def _parts(row: Row) -> dict[str, float]:
    """Seconds of each part of a step. The first wait is cut to the step: it began while servers started."""
    parts = {name: row.get(name) or 0.0 for name in (*TIMED_PARTS, DRAIN)}
    others = sum(parts.values()) - parts["wait_seconds"]
    room = max(0.0, (row.get("step_seconds") or 0.0) - others)
    return parts | {"wait_seconds": min(parts["wait_seconds"], room)}


def _weighted_mean(steps: list[Row], name: str) -> float | None:
    """Mean of a share over steps, weighted by their duration."""
    pairs = [(row[name], row.get("step_seconds") or 0.0) for row in steps if row.get(name) is not None]
    weight = sum(seconds for _, seconds in pairs)
    return sum(share * seconds for share, seconds in pairs) / weight if weight else None
